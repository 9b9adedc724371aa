//! LoRA adapters against models with their updates merged into the weights, on the reference
//! executor and on a device; rows with and without adapters in one batch; files that are refused.
#![allow(clippy::unwrap_used)]

mod adapters;
mod common;
#[path = "common/device.rs"]
mod device;
#[path = "common/random.rs"]
mod random;
#[path = "idea/tiny.rs"]
mod tiny;

use std::path::Path;

use adapters::{Adapter, build, build_with, keys, merge};
use common::{Driven, Sizes};
use hob::engine::Mix;
use hob::gguf::{Array, GgufBuilder, GgufFile, Value};
use hob::gpu::Executor;
use hob::hf;
use hob::kernels::KvFormat;
use hob::model::{AdapterFile, read_hyper_params};
use hob::reference::ReferenceExecutor;
use hob::scheduler::{Batch, TokenSpan};
use hob::tensor::DType;

/// Of logits whose size is about 5: sums are taken in another order.
const TOLERANCE: f32 = 2e-3;

const TOKENS: usize = 24;

const ALL: [&str; 7] =
    ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];

fn two_adapters() -> [Adapter; 2] {
    [
        Adapter { seed: 3, rank: 8, alpha: 16.0, parts: ALL.to_vec(), dtype: DType::F16 },
        Adapter {
            seed: 4,
            rank: 33,
            alpha: 8.0,
            parts: vec!["attn_v", "ffn_up"],
            dtype: DType::F32,
        },
    ]
}

fn sizes() -> Sizes {
    Sizes { context_tokens: 64, sessions: 4, tokens_max: 96, format: KvFormat::F32 }
}

/// A model with adapters, driven as the engine does.
fn load(executor: Box<dyn Executor>, base: &GgufFile, adapters: &[AdapterFile]) -> Driven {
    Driven::load_with(executor, base, adapters, sizes())
}

fn text(seed: u32) -> Vec<u32> {
    (0..TOKENS as u32).map(|at| (at * 7 + seed * 13 + at * at % 5) % 64 + 4).collect()
}

/// Logits behind the last token of each text, all in one batch: a prompt, then one more token.
fn logits(model: &mut Driven, sessions: &[(Vec<u32>, Mix)]) -> Vec<Vec<f32>> {
    let leases: Vec<_> = sessions.iter().map(|_| model.lease(TOKENS)).collect();
    let mixes: Vec<Mix> = sessions.iter().map(|(_, mix)| mix.clone()).collect();
    for range in [0..TOKENS - 1, TOKENS - 1..TOKENS] {
        let spans = sessions.iter().zip(&leases).map(|((text, _), lease)| TokenSpan {
            table: lease.table(),
            position: range.start as u32,
            tokens: text[range.clone()].to_vec(),
            logits: 1,
        });
        model.runner.step_with(&Batch { spans: spans.collect() }, &mixes).unwrap();
    }
    leases.into_iter().for_each(|lease| model.release(lease));
    (0..sessions.len()).map(|row| model.runner.logits(row).to_vec()).collect()
}

fn check_against_merged(executor: Box<dyn Executor>, base: &Path, folder: &Path) {
    let file = hf::open_model(base, None).unwrap();
    let hyper = read_hyper_params(&file).unwrap();
    let adapters = two_adapters();
    let opened: Vec<AdapterFile> = (0..)
        .zip(&adapters)
        .map(|(index, adapter)| {
            let path = folder.join(format!("adapter-{index}.gguf"));
            std::fs::write(&path, build(&file, adapter)).unwrap();
            AdapterFile::open(&path, &file, &hyper).unwrap()
        })
        .collect();
    let mut model = load(executor, &file, &opened);
    let [first, second] = &adapters;
    let mixes: [Mix; 4] = [vec![], vec![(0, 0.75)], vec![(1, -1.5)], vec![(0, 0.5), (1, 2.0)]];
    let sessions: Vec<(Vec<u32>, Mix)> = (0..).map(text).zip(mixes.iter().cloned()).collect();
    let together = logits(&mut model, &sessions);
    for (session, found) in sessions.iter().zip(&together) {
        let alone = logits(&mut model, std::slice::from_ref(session)).remove(0);
        let same = alone.iter().zip(found).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "{:?}: other bits alone than beside others", session.1);
        let merged: Vec<(Adapter, f32)> = session
            .1
            .iter()
            .map(|(index, scale)| ([first, second][*index].clone(), *scale))
            .collect();
        let path = folder.join("merged.gguf");
        merge(&file, &merged, &path);
        let mut merged = Driven::load(Box::new(ReferenceExecutor::new()), &path, sizes());
        let wanted = logits(&mut merged, &[(session.0.clone(), Vec::new())]).remove(0);
        let pairs = || found.iter().zip(&wanted);
        let worst = pairs().map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let size = wanted.iter().map(|logit| logit.abs()).fold(0.0, f32::max);
        assert!(worst <= TOLERANCE, "{:?}: off by {worst}, logits up to {size}", session.1);
    }
    // Each adapter changes what comes out, far more than the tolerance.
    let texts: Vec<(Vec<u32>, Mix)> = mixes.into_iter().map(|mix| (text(9), mix)).collect();
    let differing = logits(&mut model, &texts);
    for pair in differing.windows(2) {
        let apart = pair[0].iter().zip(&pair[1]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart > 50.0 * TOLERANCE, "{apart}");
    }
}

#[test]
fn adapters_give_what_merged_weights_give() {
    let folder = tempfile::tempdir().unwrap();
    for base in tiny::write(folder.path()) {
        check_against_merged(Box::new(ReferenceExecutor::new()), &base, folder.path());
    }
}

#[test]
fn adapters_give_what_merged_weights_give_on_a_device() {
    let folder = tempfile::tempdir().unwrap();
    let [base, _] = tiny::write(folder.path());
    check_against_merged(Box::new(device::open(false)), &base, folder.path());
}

#[test]
fn adapters_that_do_not_fit_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let [base, _] = tiny::write(folder.path());
    let file = hf::open_model(&base, None).unwrap();
    let hyper = read_hyper_params(&file).unwrap();
    let path = folder.path().join("adapter.gguf");
    let zeros = |len: u64| vec![0; len as usize * 4];
    let pair = |builder: GgufBuilder, name: &str, [row_len, rows]: [u64; 2], rank: u64| {
        let (a, b) = (zeros(row_len * rank), zeros(rank * rows));
        builder.tensor(&format!("{name}.lora_a"), DType::F32, &[row_len, rank], &a).tensor(
            &format!("{name}.lora_b"),
            DType::F32,
            &[rank, rows],
            &b,
        )
    };
    let up = "blk.0.ffn_up.weight";
    let bad = zeros(64).into_iter().enumerate().map(|(at, _)| [0, 0, 0xc0, 0x7f][at % 4]);
    let bad: Vec<u8> = bad.collect();
    let mut other = keys("llama", 1.0);
    other = other.tensor(&format!("{up}.lora_a"), DType::F32, &[64, 8], &zeros(512));
    for (builder, told) in [
        (GgufBuilder::new(), "general.type"),
        (
            GgufBuilder::new().metadata("general.type", "model"),
            "wanted \"adapter\", found \"model\"",
        ),
        (keys("qwen2", 1.0), "general.architecture: wanted \"llama\", found \"qwen2\""),
        (keys("llama", f32::NAN), "adapter.lora.alpha: wanted 0 to 65504, found NaN"),
        (keys("llama", 1.0), "at least one pair"),
        (other, "wanted the other half of its pair, found no such tensor"),
        (pair(keys("llama", 1.0), "token_embd.weight", [64, 96], 8), "an update of another tensor"),
        (pair(keys("llama", 1.0), "blk.9.ffn_up.weight", [64, 192], 8), "an update of another"),
        (pair(keys("llama", 1.0), up, [64, 191], 8), "wanted shape [8, 192]"),
        (pair(keys("llama", 1.0), up, [32, 192], 8), "wanted shape [64, 8]"),
        (pair(keys("llama", 1.0), up, [64, 192], 600), "wanted a rank of 1 to 512, found 600"),
        (
            keys("llama", 1.0).tensor("x", DType::F32, &[1], &zeros(1)),
            "ends with .lora_a or .lora_b",
        ),
        (
            keys("llama", 1.0).tensor(&format!("{up}.lora_a"), DType::F32, &[64, 1], &bad).tensor(
                &format!("{up}.lora_b"),
                DType::F32,
                &[1, 192],
                &zeros(192),
            ),
            "wanted values up to 65504, found NaN",
        ),
    ] {
        std::fs::write(&path, builder.build()).unwrap();
        let error = AdapterFile::open(&path, &file, &hyper).unwrap_err().to_string();
        assert!(error.contains(told), "wanted {told:?}, found {error:?}");
        assert!(error.contains("adapter.gguf"), "{error}");
    }
    // Bytes cut off or changed anywhere: refused, or an adapter; never a crash.
    let whole = build(&file, &two_adapters()[0]);
    for at in (0..whole.len()).step_by(whole.len() / 97) {
        std::fs::write(&path, &whole[..at]).unwrap();
        assert!(AdapterFile::open(&path, &file, &hyper).is_err(), "cut at {at}");
        let mut changed = whole.clone();
        changed[at] ^= 0xff;
        std::fs::write(&path, changed).unwrap();
        let _ = AdapterFile::open(&path, &file, &hyper);
    }
}

#[test]
fn an_adapter_with_a_setting_that_hob_does_not_follow_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let [base, _] = tiny::write(folder.path());
    let file = hf::open_model(&base, None).unwrap();
    let hyper = read_hyper_params(&file).unwrap();
    let path = folder.path().join("adapter.gguf");
    let adapter = &two_adapters()[0];
    let open = |key: &str, value: Value| {
        std::fs::write(&path, build_with(&file, adapter, &[(key, value)])).unwrap();
        AdapterFile::open(&path, &file, &hyper).map(drop)
    };
    // What people are told changes nothing.
    for key in ["adapter.lora.task_name", "adapter.lora.prompt_prefix", "general.description"] {
        open(key, "x".into()).unwrap();
    }
    let tokens = Value::Array(Array::U32(vec![5, 6]));
    let activated = open("adapter.alora.invocation_tokens", tokens).unwrap_err().to_string();
    assert!(activated.contains("adapter.alora.invocation_tokens: wanted no such key"));
    assert!(activated.contains("an activated LoRA"), "{activated}");
    let other = open("adapter.lora.use_dora", true.into()).unwrap_err().to_string();
    assert!(other.contains("adapter.lora.use_dora: wanted no such key"), "{other}");
}

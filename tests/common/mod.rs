//! What several tests share: where files are, golden outputs, and a model driven step by step.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test uses a part

use std::collections::BTreeSet;
use std::path::PathBuf;

use hob::engine::Runner;
use hob::gguf::GgufFile;
use hob::gpu::Executor;
use hob::kernels::{KvFormat, PageLayout};
use hob::kv_cache::{KvCache, KvConfig, KvLease};
use hob::model::{AdapterFile, Limits, Model, normalise, read_hyper_params};
use hob::reference::ReferenceExecutor;
use hob::scheduler::{Batch, TokenSpan};
use serde::Deserialize;

/// The folder of shared reference files, where there is one.
pub fn shared() -> Option<PathBuf> {
    let path = std::env::var_os("HOB_SHARED").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared")),
        PathBuf::from,
    );
    path.is_dir().then_some(path)
}

/// A real model that `make models` fetched.
pub fn real_model(name: &str) -> PathBuf {
    let folder = std::env::var_os("HOB_MODELS").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/target/models")),
        PathBuf::from,
    );
    let path = folder.join(name);
    assert!(path.is_file(), "{} is missing: run `make models`", path.display());
    path
}

/// One prompt of a golden file.
#[derive(Debug, Deserialize)]
pub struct Golden {
    pub name: String,
    pub tokens: Vec<u32>,
    /// What was generated, where the steps do not cover every token.
    #[serde(default)]
    pub generated: Vec<u32>,
    pub steps: Vec<GoldenStep>,
}

/// One generated token of the reference and its ten most likely.
#[derive(Debug, Deserialize)]
pub struct GoldenStep {
    /// Its place among the generated tokens, where the steps do not cover every token.
    pub at: Option<usize>,
    pub id: u32,
    pub top: Vec<(u32, f32)>,
}

/// Reads a golden file.
pub fn goldens(path: &std::path::Path) -> Vec<Golden> {
    let text = std::fs::read_to_string(path).expect("the golden file");
    serde_json::from_str(&text).expect("a golden file is a list of prompts")
}

/// Reads a golden file that is kept with the tests.
pub fn golden_data(name: &str) -> Vec<Golden> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden");
    goldens(&folder.join(format!("{name}.json")))
}

/// The small models of the shared files that hob runs, each beside its golden file.
pub const SMALL_MODELS: [&str; 27] = [
    "llama",
    "llama-F16",
    "llama-BF16",
    "llama-Q8_0",
    "llama-Q4_0",
    "llama-Q4_1",
    "llama-Q5_0",
    "llama-Q5_1",
    "llama-Q6_K",
    "llama-Q4_K_M",
    "llama-mha",
    "llama-tied",
    "llama-linear",
    "llama3-ropefreqs",
    "llama-hd128-bias",
    "qwen2",
    "qwen3",
    "gemma3",
    "mixtral",
    "mixtral-Q8_0",
    "phi3",
    "phi3-longrope",
    "starcoder2",
    "olmo2",
    "malformed/ok-plain",
    "malformed/ok-odd-features",
    "malformed/ok-trailing-bytes",
];

/// A text's tokens and its embedding.
#[derive(Debug, Deserialize)]
pub struct GoldenEmbedding {
    pub tokens: Vec<u32>,
    pub embedding: Vec<f32>,
}

/// A small encoder that is kept with the tests, and its golden outputs.
pub fn encoder(name: &str) -> (PathBuf, Vec<GoldenEmbedding>) {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/encoders");
    let golden = std::fs::read_to_string(folder.join(format!("{name}.golden.json"))).unwrap();
    (folder.join(format!("{name}.gguf")), serde_json::from_str(&golden).unwrap())
}

/// Names for [`encoder`].
pub const ENCODERS: [&str; 3] = ["bert-cls", "bert-mean", "nomic-bert"];

/// A small mixture of experts that is kept with the tests, and its golden outputs.
pub fn mixture(name: &str) -> (PathBuf, Vec<Golden>) {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/experts");
    // One model comes in two files that mean the same.
    let golden = name.trim_end_matches("-split");
    (folder.join(format!("{name}.gguf")), goldens(&folder.join(format!("{golden}.golden.json"))))
}

/// Names for [`mixture`].
pub const MIXTURES: [&str; 8] = [
    "llama",
    "llama-split",
    "qwen2moe",
    "qwen3moe",
    "granitemoe",
    "granitemoe-shared",
    "olmoe",
    "deepseek",
];

/// Sizes for [`Driven::load`].
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub context_tokens: usize,
    pub sessions: usize,
    pub tokens_max: usize,
    pub format: KvFormat,
}

/// A model with sessions that the test drives itself.
pub struct Driven {
    pub runner: Runner,
    pub tokens_max: usize,
    pub logit_rows_max: usize,
}

impl Driven {
    pub fn load(executor: Box<dyn Executor>, path: &std::path::Path, sizes: Sizes) -> Self {
        let file = hob::hf::open_model(path, None).expect("a model");
        Self::load_with(executor, &file, &[], sizes)
    }

    /// With matmuls of narrower numbers than f32.
    pub fn load_reduced_precision(
        executor: Box<dyn Executor>,
        path: &std::path::Path,
        sizes: Sizes,
    ) -> Self {
        let file = hob::hf::open_model(path, None).expect("a model");
        Self::load_as(executor, &file, &[], sizes, true)
    }

    /// With adapters of the model.
    pub fn load_with(
        executor: Box<dyn Executor>,
        file: &GgufFile,
        adapters: &[AdapterFile],
        sizes: Sizes,
    ) -> Self {
        Self::load_as(executor, file, adapters, sizes, false)
    }

    fn load_as(
        mut executor: Box<dyn Executor>,
        file: &GgufFile,
        adapters: &[AdapterFile],
        sizes: Sizes,
        reduced_precision: bool,
    ) -> Self {
        let hyper = read_hyper_params(file).expect("a supported model");
        let layout =
            PageLayout::new(executor.capabilities(), hyper.kv_heads, hyper.head_dim, sizes.format);
        let config = KvConfig {
            layout,
            layers: hyper.kv_layers(),
            context_tokens: sizes.context_tokens,
            tokens_max: sizes.context_tokens * sizes.sessions,
            leases_max: sizes.sessions,
        };
        let limits = Limits {
            tokens_max: sizes.tokens_max,
            logit_rows_max: 16,
            context_tokens: sizes.context_tokens,
            kv_bytes: config.bytes(),
            adapter_bytes: 0,
            reduced_precision,
        };
        let mut model =
            Model::load(&mut *executor, file, limits, &mut |_, _| {}).expect("it loads");
        for (number, adapter) in adapters.iter().enumerate() {
            model.add_adapter(&mut *executor, number, adapter).expect("room for it");
        }
        let kv = KvCache::new(&mut *executor, config).expect("room for the cache");
        let runner = Runner::new(executor, model, kv);
        Self { runner, tokens_max: sizes.tokens_max, logit_rows_max: 16 }
    }

    /// Holds every kernel that the model uses against the reference; the pipelines.
    pub fn check_kernels(&mut self) -> BTreeSet<String> {
        let lanes = self.runner.executor().capabilities().lanes;
        let mut passed = BTreeSet::new();
        let mut reference = ReferenceExecutor::with_lanes(lanes);
        let fault = self.runner.find_fault(&mut reference, &mut passed).expect("device");
        assert_eq!(fault, None);
        println!("{} pipelines checked", passed.len());
        assert!(passed.len() > 5, "{passed:?}");
        // Whether splits are joined is the last constant of all but the tier of matrix units.
        let is_split = |name: &String| {
            name.starts_with("attention") && !name.contains("_tiled") && name.ends_with(",1")
        };
        let splits = passed.iter().any(is_split);
        let deep = self.runner.kv().config().context_tokens > 600;
        assert!(splits || !deep, "attention in splits is among them: {passed:?}");
        passed
    }

    pub fn lease(&mut self, tokens: usize) -> KvLease {
        let (kv, executor) = self.runner.kv_mut();
        let mut lease = kv.lease().expect("a table");
        kv.grow(executor, &mut lease, 0, tokens).expect("device").expect("pages");
        lease
    }

    pub fn release(&mut self, lease: KvLease) {
        self.runner.kv_mut().0.release(lease);
    }

    /// Evaluates `tokens` from `position` on in steps of at most `chunk`, and returns the logits of
    /// the last `wanted`.
    pub fn evaluate(
        &mut self,
        lease: &KvLease,
        position: usize,
        tokens: &[u32],
        wanted: usize,
        chunk: usize,
    ) -> Vec<Vec<f32>> {
        let mut out = Vec::new();
        let first_wanted = tokens.len() - wanted;
        let mut at = 0;
        while at < tokens.len() {
            let limit = if at + chunk > first_wanted { self.logit_rows_max } else { chunk };
            let count = chunk.min(limit).min(self.tokens_max).min(tokens.len() - at);
            let logits = (at + count).saturating_sub(first_wanted.max(at));
            let span = TokenSpan {
                table: lease.table(),
                position: (position + at) as u32,
                tokens: tokens[at..at + count].to_vec(),
                logits,
            };
            self.runner.step(&Batch { spans: vec![span] }).expect("a step");
            out.extend((0..logits).map(|row| self.runner.logits(row).to_vec()));
            at += count;
        }
        out
    }
}

impl Driven {
    /// Embeds texts in one batch.
    pub fn embed(&mut self, texts: &[&[u32]]) -> Vec<Vec<f32>> {
        let leases: Vec<KvLease> = texts.iter().map(|text| self.lease(text.len())).collect();
        let spans = texts.iter().zip(&leases).map(|(text, lease)| TokenSpan {
            table: lease.table(),
            position: 0,
            tokens: text.to_vec(),
            logits: 0,
        });
        let rows = self.runner.encode(&Batch { spans: spans.collect() }).expect("a step");
        leases.into_iter().for_each(|lease| self.release(lease));
        let hyper = self.runner.model().hyper();
        let (pooling, width) = (hyper.pooling, hyper.embedding as usize);
        let mut first = 0;
        let mut embed = |text: &&[u32]| {
            let rows = &rows[first * width..(first + text.len()) * width];
            first += text.len();
            let mut vector = pooling.pool(rows, width);
            normalise(&mut vector);
            vector
        };
        texts.iter().map(&mut embed).collect()
    }
}

/// Holds an encoder against its golden texts, in one batch and each alone: the bits are the same.
/// Returns the worst difference of a value of an embedding of length 1.
pub fn check_embeddings(model: &mut Driven, goldens: &[GoldenEmbedding], tolerance: f32) -> f32 {
    let texts: Vec<&[u32]> = goldens.iter().map(|golden| &golden.tokens[..]).collect();
    let together = model.embed(&texts);
    let mut worst = 0.0_f32;
    for ((golden, text), found) in goldens.iter().zip(&texts).zip(&together) {
        let alone = model.embed(&[text]);
        assert!(
            alone[0].iter().zip(found).all(|(a, b)| a.to_bits() == b.to_bits()),
            "{} tokens: other bits alone than beside others",
            text.len()
        );
        for (found, wanted) in found.iter().zip(&golden.embedding) {
            let off = (found - wanted).abs();
            assert!(off <= tolerance, "{} tokens: {found}, {wanted} wanted", text.len());
            worst = worst.max(off);
        }
    }
    worst
}

/// Natural-log probabilities of a row of logits.
pub fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|v| f64::from(v - best).exp()).sum();
    logits.iter().map(|v| v - best - total.ln() as f32).collect()
}

pub fn argmax(row: &[f32]) -> u32 {
    let best = row
        .iter()
        .enumerate()
        .fold((0, f32::NEG_INFINITY), |best, (i, v)| if *v > best.1 { (i, *v) } else { best });
    best.0 as u32
}

/// Holds a model against one golden prompt, teacher-forced; returns the worst difference of a
/// logprob.
pub fn check_golden(model: &mut Driven, golden: &Golden, tolerance: f32, chunk: usize) -> f32 {
    let forced: Vec<u32> = if golden.generated.is_empty() {
        golden.steps.iter().map(|step| step.id).collect()
    } else {
        golden.generated.clone()
    };
    let mut tokens = golden.tokens.clone();
    tokens.extend(&forced[..forced.len() - 1]);
    let lease = model.lease(tokens.len());
    let rows = model.evaluate(&lease, 0, &tokens, forced.len(), chunk);
    model.release(lease);
    let mut worst = 0.0_f32;
    for (index, step) in golden.steps.iter().enumerate() {
        let at = step.at.unwrap_or(index);
        let row = &rows[at];
        let ours = log_softmax(row);
        for (id, wanted) in &step.top {
            let off = (ours[*id as usize] - wanted).abs();
            assert!(off <= tolerance, "{} step {at} token {id}: off by {off}", golden.name);
            worst = worst.max(off);
        }
        if step.top[0].1 - step.top[1].1 > tolerance.max(0.05) {
            assert_eq!(argmax(row), step.top[0].0, "{} step {at}: best token", golden.name);
        }
    }
    worst
}

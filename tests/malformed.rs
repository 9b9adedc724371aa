//! Malformed model files against everything that opens one: the bad are refused in words that
//! name the file and the fault, the good load and answer, and nothing crashes or hangs.

mod common;
#[path = "common/random.rs"]
mod random;
#[path = "idea/tiny.rs"]
mod tiny;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hob::engine::{
    self, CancelFlag, Constraints, EngineCommand, EngineEvent, EngineOptions, FinishReason,
    GenerateRequest, Opened, Owner, SamplingParams,
};
use hob::gguf::GgufFile;
use hob::reference::ReferenceExecutor;
use tokio::sync::mpsc;

/// A file is refused before any work is done on its weights.
const REFUSAL_MAX: Duration = Duration::from_secs(1);

type Failure = Box<dyn Error>;

/// What each of the bad files must be blamed for: the key or tensor, and what was found there.
const BLAMES: &[(&str, &[&str])] = &[
    ("bad-alignment-2pow31", &["general.alignment", "2147483648"]),
    ("bad-alignment-string", &["general.alignment", "string"]),
    ("bad-arch-not-a-string", &["general.architecture", "wanted a string", "u32"]),
    ("bad-array-element-type-99", &["general.tags", "99"]),
    ("bad-array-length-2pow63", &["general.tags", "wanted", "found"]),
    ("bad-array-nested-60000", &["general.tags", "array of arrays"]),
    ("bad-block-count-0", &["llama.block_count", "found 0"]),
    ("bad-data-missing", &["token_embd.weight", "found 0"]),
    ("bad-data-truncated-half", &["blk.0.attn_q.weight", "wanted 4096", "found 1792"]),
    ("bad-duplicate-tensor", &["blk.0.ffn_up.weight", "twice"]),
    ("bad-embedding-length-missing", &["llama.embedding_length", "missing"]),
    ("bad-empty", &["header", "found 0"]),
    ("bad-eps-nan", &["llama.attention.layer_norm_rms_epsilon", "NaN"]),
    ("bad-expert-used-without-experts", &["llama.expert_used_count", "4"]),
    ("bad-head-count-2pow31", &["llama.attention.head_count", "2147483648"]),
    ("bad-head-count-not-dividing", &["llama.attention.head_count", "32", "found 5"]),
    ("bad-header-magic-only", &["header", "found 0"]),
    ("bad-key-length-2pow63", &["name of metadata key 2", "9223372036854775808"]),
    ("bad-kv-count-2pow63", &["9223372036854775808 metadata entries"]),
    ("bad-magic-ggml", &["GGUF"]),
    ("bad-rope-dim-1000", &["llama.rope.dimension_count", "1000"]),
    ("bad-string-length-2pow40", &["general.description", "1099511627776"]),
    ("bad-tensor-count-2pow40", &["1099511627776 tensors"]),
    ("bad-tensor-dim-0", &["blk.0.ffn_up.weight", "dimension 1 is 0"]),
    ("bad-tensor-dims-bytes-overflow", &["blk.0.ffn_up.weight", "4611686018427387904"]),
    ("bad-tensor-infos-truncated", &["tensor blk.0.attn_v.weight", "found 0"]),
    ("bad-tensor-name-length-2pow63", &["name of tensor 0", "9223372036854775808"]),
    ("bad-tensor-ndims-2pow31", &["blk.0.ffn_up.weight", "2147483648"]),
    ("bad-tensor-offset-overflow", &["blk.0.ffn_up.weight", "18446744073709551584"]),
    ("bad-tensor-offset-past-eof", &["blk.0.ffn_up.weight", "1073741824"]),
    ("bad-tensor-row-not-block-multiple", &["blk.0.ffn_up.weight", "32", "256"]),
    ("bad-tensor-shape-transposed", &["blk.0.ffn_up.weight", "[32, 64]", "[64, 32]"]),
    ("bad-tensor-type-i32-weight", &["blk.0.ffn_up.weight", "I32"]),
    ("bad-token-types-too-short", &["tokenizer.ggml.token_type", "3", "259"]),
    ("bad-tokens-missing", &["tokenizer.ggml.tokens", "missing"]),
    ("bad-value-type-13", &["general.tags", "13"]),
    ("bad-version-0", &["version 0", "wanted version 2 or 3"]),
    ("bad-version-99", &["version 99", "wanted version 2 or 3"]),
    ("bad-vocab-larger-than-embedding", &["token_embd.weight", "300", "259"]),
];

#[test]
fn bad_files_are_refused_by_name_and_fault_and_the_others_do_no_harm() -> Result<(), Failure> {
    let Some(shared) = common::shared() else {
        println!("skipped: shared files absent");
        return Ok(());
    };
    let files = model_files(&shared.join("tiny/malformed"))?;
    assert!(files.len() > BLAMES.len(), "the folder holds every kind of file");
    for path in files {
        let name = path.file_stem().ok_or("a file has a name")?.to_string_lossy().into_owned();
        let started = Instant::now();
        let opened = open(&path);
        match name.split('-').next() {
            Some("bad") => {
                let error = opened.err().ok_or_else(|| format!("{name} was not refused"))?;
                assert!(started.elapsed() < REFUSAL_MAX, "{name}: {:?}", started.elapsed());
                check_blame(&name, &path, &error.to_string());
            }
            Some("ok") => {
                let EngineEvent::Done(result) = generate(opened?)? else {
                    return Err(format!("{name} gave no result").into());
                };
                assert_eq!(result.finish_reason, FinishReason::Length, "{name}");
                assert_eq!(result.tokens.len(), 4, "{name}");
            }
            _ => match opened {
                Ok(opened) => println!("{name}: {:?}", generate(opened)?),
                Err(error) => check_blame(&name, &path, &error.to_string()),
            },
        }
    }
    Ok(())
}

/// What the architecture cannot do without must not be taken for a tensor that is optional.
#[test]
fn a_tensor_that_the_architecture_needs_is_missed() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let [_, path] = tiny::write(folder.path());
    let whole = fs::read(&path)?;
    for part in ["attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm"] {
        let name = format!("blk.1.{part}.weight");
        let mut bytes = whole.clone();
        let at = bytes.windows(name.len()).position(|found| found == name.as_bytes());
        let at = at.ok_or("the model has the tensor")?;
        bytes[at] = b'x';
        fs::write(&path, bytes)?;
        let message = open(&path).err().ok_or_else(|| format!("{name} was not missed"))?;
        assert!(message.to_string().contains(&format!("tensor {name}: wanted")), "{message}");
    }
    Ok(())
}

/// What a weight that is no number spoils may look like an answer by the time it is one.
#[test]
fn a_weight_that_is_no_number_is_refused_by_tensor_and_row() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    for path in tiny::write(folder.path()) {
        let whole = fs::read(&path)?;
        let file = GgufFile::from_bytes(&path, whole.clone())?;
        for name in ["token_embd.weight", "blk.1.attn_v.weight", "blk.3.ffn_down.weight"] {
            let tensor = file.tensor(name).ok_or("the model has the tensor")?;
            let row_bytes = (tensor.bytes / tensor.rows()) as usize;
            let mut data = vec![0; tensor.bytes as usize];
            file.read_tensor(tensor, 0, &mut data)?;
            let at = whole.windows(data.len()).position(|found| found == data);
            let mut bytes = whole.clone();
            // The first f16 of the last row: a value, or the scale of a block.
            let at = at.ok_or("it is in the file")? + data.len() - row_bytes;
            bytes[at..at + 2].copy_from_slice(&0x7e01_u16.to_le_bytes());
            fs::write(&path, bytes)?;
            let message = open(&path).err().ok_or("it was not refused")?.to_string();
            let row = tensor.rows() - 1;
            let wanted = format!(
                "tensor {name}: wanted finite weights, found an infinity or a NaN in row {row}"
            );
            assert!(message.contains(&wanted), "{message}");
        }
    }
    Ok(())
}

fn model_files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "gguf") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn check_blame(name: &str, path: &Path, message: &str) {
    println!("{message}");
    assert!(message.starts_with(&path.display().to_string()), "{name}: {message}");
    // A file that came later has only to be refused by its name.
    let blames = BLAMES.iter().find(|(known, _)| *known == name).map_or(&[][..], |(_, all)| *all);
    for blame in blames {
        assert!(message.contains(blame), "{name}: {blame:?} is missing in: {message}");
    }
}

fn open(path: &Path) -> Result<Opened, Failure> {
    let executor = Box::new(ReferenceExecutor::new());
    Ok(engine::open(executor, path, &EngineOptions::default(), &mut |_, _| {})?)
}

/// Four tokens after a few bytes of text.
fn generate(opened: Opened) -> Result<EngineEvent, Failure> {
    let tokens = opened.tokenizer.encode("hello", true, false)?;
    let (engine, thread) = engine::start(opened, &EngineOptions::default())?;
    let (events, mut incoming) = mpsc::unbounded_channel();
    let request = GenerateRequest {
        owner: Owner { uid: 0 },
        session: None,
        tokens,
        tokens_max: 4,
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        stop: Vec::new(),
        logprobs: None,
        prompt_logprobs: None,
        stream: false,
        report_start: false,
        adapters: Vec::new(),
        priority: None,
        deadline: None,
        cancel: CancelFlag::default(),
        constraints: Constraints::default(),
    };
    engine.commands.blocking_send(
        request.owner,
        EngineCommand::Generate { request: Box::new(request), events },
    )?;
    let event = incoming.blocking_recv().ok_or("the engine ended without an answer")?;
    drop(engine);
    thread.join().map_err(|_| "the engine panicked")??;
    Ok(event)
}

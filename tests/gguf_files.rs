//! The GGUF reader on files from elsewhere: malformed ones, tiny models, real models.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hob::gguf::{GgufFault, GgufFile, TensorInfo, fuzz_gguf};
use hob::tensor::dequantize_row;

/// Refusing a file reads a few kilobytes of it; a second leaves room for a loaded machine.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(1);

/// Faults of meaning: the container is sound, and the model loader refuses these.
const SOUND_CONTAINERS: [&str; 13] = [
    "bad-arch-not-a-string",
    "bad-block-count-0",
    "bad-embedding-length-missing",
    "bad-eps-nan",
    "bad-expert-used-without-experts",
    "bad-head-count-2pow31",
    "bad-head-count-not-dividing",
    "bad-rope-dim-1000",
    "bad-tensor-shape-transposed",
    "bad-tensor-type-i32-weight",
    "bad-token-types-too-short",
    "bad-tokens-missing",
    "bad-vocab-larger-than-embedding",
];

/// The GGUF files in the folder that `variable` names, or else in `default` under the repository.
fn files(variable: &str, default: &str, folder: &str) -> Vec<PathBuf> {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join(default);
    let root = std::env::var_os(variable).map_or(default, PathBuf::from);
    let Ok(entries) = std::fs::read_dir(root.join(folder)) else {
        println!("skipped: {} absent", root.join(folder).display());
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        paths.filter(|path| path.extension() == Some("gguf".as_ref())).collect();
    files.sort();
    files
}

#[test]
fn malformed_files_are_refused_or_open_as_named() {
    let files = files("HOB_SHARED", "../shared", "tiny/malformed");
    let mut sound = Vec::new();
    for path in &files {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let start = Instant::now();
        let opened = GgufFile::open(path);
        assert!(start.elapsed() < REFUSAL_TIME_MAX, "{name}: {:?}", start.elapsed());
        match opened {
            Ok(_) if name.starts_with("bad-") => sound.push(name),
            Ok(_) => {}
            Err(error) => {
                assert!(!name.starts_with("ok-"), "{error}");
                println!("{error}");
            }
        }
        fuzz_gguf(&std::fs::read(path).unwrap());
    }
    if !files.is_empty() {
        assert_eq!(sound, SOUND_CONTAINERS);
    }
}

/// Reads `row` of `tensor`; its values must be finite, which blocks read from elsewhere are not.
fn check_row(file: &GgufFile, tensor: &TensorInfo, row: u64) {
    let Ok(dtype) = tensor.supported_dtype() else { return }; // a model of that type is refused
    let row_bytes = dtype.row_bytes(tensor.row_len()).unwrap();
    let mut bytes = vec![0; row_bytes as usize];
    file.read_tensor(tensor, row * row_bytes, &mut bytes).unwrap();
    let mut values = vec![f32::NAN; tensor.row_len() as usize];
    dequantize_row(dtype, &bytes, &mut values);
    // Gemma 4's factors say by 1e30 that a frequency does not turn.
    let most = if tensor.name == "rope_freqs.weight" { 1e31 } else { 1e4 };
    let sound = values.iter().all(|value| value.is_finite() && value.abs() < most);
    assert!(sound, "{}: {} row {row}", file.path().display(), tensor.name);
}

fn check_model(path: &Path) {
    let file = match GgufFile::open(path) {
        // A type that hob does not have is refused by its number.
        Err(error) if matches!(error.fault, GgufFault::TensorType { .. }) => return,
        opened => opened.unwrap(),
    };
    let architecture = file.metadata().str("general.architecture").unwrap();
    assert!(file.metadata().u32(&format!("{architecture}.block_count")).unwrap() > 0);
    let tokens = file.metadata().str_array("tokenizer.ggml.tokens").unwrap();
    let embedding = file.tensor("token_embd.weight").unwrap();
    assert_eq!(embedding.rows(), tokens.len() as u64);
    for tensor in file.tensors() {
        check_row(&file, tensor, 0);
        check_row(&file, tensor, tensor.rows() / 2);
        check_row(&file, tensor, tensor.rows() - 1);
    }
}

#[test]
fn tiny_models_read_whole() {
    for path in files("HOB_SHARED", "../shared", "tiny") {
        check_model(&path);
    }
}

#[test]
fn real_models_read_whole() {
    for path in files("HOB_MODELS", "target/models", "") {
        check_model(&path);
    }
}

/// Files with a tokenizer and no tensors.
#[test]
fn vocabulary_files_open() {
    for path in files("HOB_SHARED", "../shared", "vocabs") {
        let file = GgufFile::open(&path).unwrap();
        assert_eq!(file.tensors().len(), 0);
        let tokens = file.metadata().str_array("tokenizer.ggml.tokens").unwrap();
        let types = file.metadata().i32_array("tokenizer.ggml.token_type").unwrap();
        assert_eq!(tokens.len(), types.len());
    }
}

//! Hugging Face folders: safetensors with `config.json` and `tokenizer.json`, as if they were a
//! GGUF file.
//!
//! [`open`] gives a [`GgufFile`] whose metadata and tensors are made from the folder's files, so
//! that nothing else knows the difference. Weights are read, and changed where llama.cpp's
//! converter changes them, as they are asked for; on request they are quantised on the way. Files
//! are foreign input, as GGUF files are.

mod config;
mod defaults;
mod error;
mod generation;
mod json;
mod names;
mod pipeline;
mod rope;
mod safetensors;
mod tokenizer;
mod weights;

pub use error::HfError;
pub use safetensors::fuzz_safetensors;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::gguf::{FileIdentity, GgufFile, Value};
use crate::tensor::DType;

use config::{Biases, Config};
use json::Object;
use names::Place;
use safetensors::Safetensors;
use weights::{Tensor, Weights};

/// Largest list of which tensor is in which file.
const INDEX_BYTES_MAX: u64 = 32 << 20;

/// Names of the files that [`other_files`] looks for.
const OTHER_FILES: [&str; 8] = [
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];

/// Most files of a model.
const FILES_MAX: usize = 1024;

/// Opens a folder as a model file; `quantize` is the type that its matrices are given out in,
/// instead of their own.
///
/// # Errors
/// [`HfError`], naming the file, what is wanted and what is found.
pub fn open(folder: &Path, quantize: Option<DType>) -> Result<GgufFile, HfError> {
    let others = other_files(folder)?;
    let root = Object::read(&folder.join("config.json"))?;
    let config = Config::read(&root)?;
    let files = open_weights(folder)?;
    let mut tensors = Vec::new();
    for (index, file) in files.iter().enumerate() {
        for entry in &file.entries {
            match names::place(&config, &entry.name) {
                Place::Left => {}
                Place::Named(name, change) => {
                    let to = |row_len| quantized(quantize, row_len);
                    tensors.push(Tensor::of_file(name, change, &files, index, entry, to)?);
                }
                Place::Unknown => {
                    return Err(HfError::Tensor {
                        path: file.path().to_owned(),
                        tensor: entry.name.to_string(),
                        wanted: format!("a tensor of {} models", config.architecture.name()),
                        found: "one that hob does not know".to_owned(),
                    });
                }
            }
        }
    }
    check_biases(&config, &tensors, &root)?;
    tensors.extend(config.made.iter().map(|(name, values)| Tensor::made(name, values.clone())));
    let mut metadata = config.metadata;
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned());
    metadata.push(("general.name".to_owned(), Value::Str(name.unwrap_or_default())));
    metadata.extend(tokenizer::metadata(folder, &root)?);
    let infos = tensors.iter().map(|t| (t.name.clone(), t.dtype, t.dims.clone())).collect();
    let weights = Weights { files, tensors, others };
    Ok(GgufFile::from_parts(folder, metadata, infos, Box::new(weights))?)
}

/// Refuses biases that the configuration does not have, and those that it has and no file does.
fn check_biases(config: &Config, tensors: &[Tensor], root: &Object) -> Result<(), HfError> {
    let Biases { qkv, attention_output, mlp } = config.biases;
    let parts: [(&str, &[&str], bool); 3] = [
        ("attention_bias", &["attn_q", "attn_k", "attn_v"], qkv),
        ("attention_bias", &["attn_output"], attention_output),
        ("mlp_bias", &["ffn_gate", "ffn_up", "ffn_down"], mlp),
    ];
    for (key, stems, wanted) in parts {
        for stem in stems {
            let (weight, bias) = (format!(".{stem}.weight"), format!(".{stem}.bias"));
            let count = |end: &str| tensors.iter().filter(|t| t.name.ends_with(end)).count();
            let (weights, biases) = (count(&weight), count(&bias));
            if wanted && biases < weights || !wanted && biases > 0 {
                let wanted = format!("{} biases of {stem}", if wanted { weights } else { 0 });
                return Err(root.refuse(key, &wanted, format!("{biases} in the files")));
            }
        }
    }
    Ok(())
}

/// The files of a folder that say what its tensors mean.
fn other_files(folder: &Path) -> Result<Vec<FileIdentity>, HfError> {
    let mut found = Vec::new();
    for name in OTHER_FILES {
        let path = folder.join(name);
        if path.exists() {
            let read = |error| HfError::Read { path: path.clone(), error };
            found.push(FileIdentity::of(&open_file(&path)?, u64::MAX).map_err(read)?);
        }
    }
    Ok(found)
}

/// Opens a model: a folder, or a GGUF file, whose tensors stay as they are.
///
/// # Errors
/// As [`open`] and [`GgufFile::open`].
pub fn open_model(path: &Path, quantize: Option<DType>) -> Result<GgufFile, HfError> {
    if path.is_dir() {
        return open(path, quantize);
    }
    Ok(GgufFile::open(path)?)
}

/// The type that a matrix of rows of `row_len` is given out in, where it is not its own.
fn quantized(wanted: Option<DType>, row_len: u64) -> Option<DType> {
    let fits = |dtype: &DType| row_len.is_multiple_of(dtype.block_len() as u64);
    // Rows that are no whole blocks of it take the next best, or stay as they are.
    [wanted?, DType::Q8_0].into_iter().find(fits)
}

/// Opens `model.safetensors`, or the files that its index lists.
fn open_weights(folder: &Path) -> Result<Vec<Safetensors>, HfError> {
    let index = folder.join("model.safetensors.index.json");
    let single = folder.join("model.safetensors");
    if single.exists() || !index.exists() {
        return Ok(vec![Safetensors::open(&single)?]);
    }
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    let text = read_file(&index, INDEX_BYTES_MAX)?;
    let Index { weight_map } = serde_json::from_slice(&text)
        .map_err(|error| HfError::Json { path: index.clone(), error })?;
    let names: BTreeSet<&String> = weight_map.values().collect();
    let refuse = |wanted: &str, found: String| HfError::Value {
        path: index.clone(),
        key: "weight_map".to_owned(),
        wanted: wanted.to_owned(),
        found,
    };
    if names.is_empty() || names.len() > FILES_MAX {
        return Err(refuse(&format!("1 to {FILES_MAX} files"), format!("{}", names.len())));
    }
    let mut files = Vec::with_capacity(names.len());
    for name in names {
        // A file of this folder, and no other.
        if Path::new(name).file_name().is_none_or(|file| file != name.as_str()) {
            return Err(refuse("names of files of the folder", format!("{name:?}")));
        }
        files.push(Safetensors::open(&folder.join(name))?);
    }
    for (tensor, name) in &weight_map {
        let has = |file: &Safetensors| {
            file.path().file_name().is_some_and(|file| file == name.as_str())
                && file.entries.binary_search_by(|entry| (*entry.name).cmp(tensor)).is_ok()
        };
        if !files.iter().any(has) {
            return Err(refuse(&format!("{tensor:?} in {name:?}"), "no such tensor".to_owned()));
        }
    }
    Ok(files)
}

/// Opens a regular file. Anything else is refused before it is opened: opening a pipe would wait
/// for a writer.
fn open_file(path: &Path) -> Result<File, HfError> {
    let read = |error| HfError::Read { path: path.to_owned(), error };
    if !std::fs::metadata(path).map_err(read)?.is_file() {
        return Err(read(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
    }
    File::open(path).map_err(read)
}

/// Reads a whole file of at most `limit` bytes.
fn read_file(path: &Path, limit: u64) -> Result<Vec<u8>, HfError> {
    let path: PathBuf = path.to_owned();
    let mut text = Vec::new();
    let file = open_file(&path)?;
    let read = file.take(limit + 1).read_to_end(&mut text);
    read.map_err(|error| HfError::Read { path: path.clone(), error })?;
    let bytes = text.len() as u64;
    if bytes > limit {
        return Err(HfError::TooLarge { path, bytes, limit });
    }
    Ok(text)
}

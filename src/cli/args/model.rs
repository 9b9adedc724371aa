//! Arguments of the commands that work on a model file in this process.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::Numerics;
use crate::config;
use crate::tensor::DType;
use crate::tensor::quantize::QUANTIZABLE;

const TOKENIZE_AFTER_HELP: &str = "\
The bytes of stdin are taken exactly as they are: a newline at the end is a part of the text.

Examples:
  printf 'Hello world' | hob tokenize --model model.gguf
  printf 'Hello world' | hob tokenize --model vocab.gguf --json
  printf '<|im_start|>' | hob tokenize --parse-special --json     asks the daemon";

const DETOKENIZE_AFTER_HELP: &str = "\
Without ids, a JSON array of them is read from stdin. The text is written with no newline added.

Examples:
  hob detokenize --model model.gguf 19556 905
  printf 'Hello' | hob tokenize --json | hob detokenize";

const INSPECT_AFTER_HELP: &str = "\
Examples:
  hob inspect model.gguf
  hob inspect model.gguf --json | jq '.metadata.\"general.architecture\"'
  hob inspect model.gguf --json --full | jq '.metadata.\"tokenizer.ggml.tokens\" | length'";

const QUANTIZE_AFTER_HELP: &str = "\
TYPE is q8_0, q6_k, q5_k, q4_k or q4_0: about 8.5, 6.6, 5.5, 4.5 and 4.5 bits a weight. Vectors, and
matrices that models are sensitive to, stay as they are; so do rows that TYPE cannot hold, or they
become Q8_0. Best from F32, F16 or BF16: every quantisation adds its own error to those before.

For each tensor the error of the round trip is printed, against the values of IN: the root of the
mean square (also as a share of the values' own), and the largest.

Examples:
  hob quantize model-F16.gguf model-Q4_K.gguf q4_k
  hob quantize model-F16.gguf model-Q8_0.gguf q8_0 --json | jq .total";

const PERPLEXITY_AFTER_HELP: &str = "\
As llama.cpp's llama-perplexity: the text is cut in chunks of --context tokens (the first of each
replaced by BOS where the model wants one), and every token in the second half of a chunk is
predicted from all before it. Lower is better; the figures of two runs compare only with the same
text, context and chunks.

Examples:
  hob perplexity --model model.gguf -f text.txt --chunks 8
  hob perplexity --model model.gguf -f text.txt --kv-dtype f32 --json";

/// Options of `hob tokenize`.
#[derive(Debug, Args)]
#[command(after_help = TOKENIZE_AFTER_HELP)]
pub struct TokenizeOptions {
    /// Model of the store, a (vocabulary-only) GGUF file or a Hugging Face folder; without it, the
    /// daemon is asked
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Cut text by the default rule where the model's pre-tokenizer is not known
    #[arg(long, requires = "model")]
    pub tokenizer_fallback: bool,
    /// Add the tokens the model wants around a text, such as BOS
    #[arg(long)]
    pub add_special: bool,
    /// Read special tokens in the text, such as <|im_start|>, as the tokens they name
    #[arg(long)]
    pub parse_special: bool,
    /// Print a JSON array of ids
    #[arg(long)]
    pub json: bool,
}

/// Options of `hob detokenize`.
#[derive(Debug, Args)]
#[command(after_help = DETOKENIZE_AFTER_HELP)]
pub struct DetokenizeOptions {
    /// Model of the store, a (vocabulary-only) GGUF file or a Hugging Face folder; without it, the
    /// daemon is asked
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Cut text by the default rule where the model's pre-tokenizer is not known
    #[arg(long, requires = "model")]
    pub tokenizer_fallback: bool,
    /// Token ids
    #[arg(value_name = "ID")]
    pub tokens: Vec<u32>,
    /// Print a JSON string
    #[arg(long)]
    pub json: bool,
}

/// Options of `hob inspect`.
#[derive(Debug, Args)]
#[command(after_help = INSPECT_AFTER_HELP)]
pub struct InspectOptions {
    /// Model of the store, a GGUF file or a Hugging Face folder
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
    /// Do not shorten long arrays and texts
    #[arg(long)]
    pub full: bool,
}

/// Options of `hob quantize`.
#[derive(Debug, Args)]
#[command(after_help = QUANTIZE_AFTER_HELP)]
pub struct QuantizeOptions {
    /// Model of the store, or a GGUF file
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// File to write
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// Tensor type of the matrices
    #[arg(value_name = "TYPE", value_parser = quantizable)]
    pub dtype: DType,
    /// Replace OUT where it exists
    #[arg(long)]
    pub force: bool,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

fn quantizable(text: &str) -> Result<DType, String> {
    let found = DType::from_name(text).filter(|dtype| QUANTIZABLE.contains(dtype));
    found.ok_or_else(|| format!("wanted one of {}", QUANTIZABLE.map(DType::name).join(", ")))
}

/// Element type of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(non_camel_case_types)] // as the option writes them
pub enum KvDtype {
    /// 32-bit floats
    F32,
    /// 16-bit floats
    F16,
    /// 8-bit integers with an f16 scale for 32
    #[value(name = "q8_0")]
    Q8_0,
}

impl KvDtype {
    /// What was asked for, in the words of the configuration.
    pub(crate) fn setting(asked: Option<Self>) -> config::KvDtype {
        match asked {
            None => config::KvDtype::Auto,
            Some(Self::F32) => config::KvDtype::F32,
            Some(Self::F16) => config::KvDtype::F16,
            Some(Self::Q8_0) => config::KvDtype::Q8_0,
        }
    }
}

/// Options of `hob perplexity`.
#[derive(Debug, Args)]
#[command(after_help = PERPLEXITY_AFTER_HELP)]
pub struct PerplexityOptions {
    /// Model of the store, or a GGUF file
    #[arg(short, long, value_name = "MODEL")]
    pub model: PathBuf,
    /// Text to predict
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Tokens of a chunk
    #[arg(long, value_name = "TOKENS", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(4..=1 << 20))]
    pub context: u32,
    /// Most chunks to score; without it, all of the text
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub chunks: Option<u32>,
    /// Element type of the KV cache [default: f16 where the device has it, else f32]
    #[arg(long, value_name = "TYPE")]
    pub kv_dtype: Option<KvDtype>,
    /// Device by index, name or UUID (see `hob devices`)
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// What kernels may be chosen by: the daemon's setting
    #[arg(long, value_name = "HOW", default_value = "exact")]
    pub numerics: Numerics,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

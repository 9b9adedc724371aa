//! Arguments of `hob bench`.

use std::path::PathBuf;

use clap::Args;

use super::{KvDtype, Numerics};

const BENCH_AFTER_HELP: &str = "\
pp and tg are those of llama.cpp's llama-bench: pp is the evaluation of a prompt of N random tokens,
tg that of N tokens one at a time; @ D follows a context of D tokens, x S is done by S sessions at
once. The figures are tokens per second of all sessions; TTFT is the time from the prompts to a
session's first logits, ITL that between two tokens of a session. A warm-up is not counted.

GB/s and GFLOP/s are what the model must move and compute at least, over the time it took; their
percentages are of the bandwidth and of the multiply-adds that the device is measured to reach.

Nothing is measured while other programs keep the processors busy, and a run that they disturbed
says so; --force measures all the same.

Lists are separated by commas: every combination is measured.

Examples:
  hob bench --model model.gguf
  hob bench --model model.gguf -p 128 -n 16 -r 3 --device llvmpipe --json
  hob bench --model model.gguf -p 0 -n 32 --sessions 1,2,4,8,16,32
  hob bench --model model.gguf -p 512 -n 32 --depth 0,4096 --profile
  hob bench --model model.gguf -p 0 -n 16 -r 1 --trace trace.json
  hob bench --model model.gguf --load";

/// Options of `hob bench`.
#[derive(Debug, Args)]
#[command(after_help = BENCH_AFTER_HELP)]
pub struct BenchOptions {
    /// Model of the store, or a GGUF file
    #[arg(short, long, value_name = "MODEL")]
    pub model: PathBuf,
    /// Tokens of the prompt; 0 skips this measurement
    #[arg(short = 'p', long, value_name = "TOKENS", default_value = "512", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(..=1 << 20))]
    pub prompt_tokens: Vec<u32>,
    /// Tokens to generate; 0 skips this measurement
    #[arg(short = 'n', long, value_name = "TOKENS", default_value = "128", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(..=1 << 20))]
    pub generate_tokens: Vec<u32>,
    /// Tokens that are in each context before
    #[arg(short = 'd', long, value_name = "TOKENS", default_value = "0", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(..=1 << 20))]
    pub depth: Vec<u32>,
    /// Sessions at once
    #[arg(long, value_name = "COUNT", default_value = "1", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub sessions: Vec<u32>,
    /// Times each measurement is taken
    #[arg(short = 'r', long, value_name = "COUNT", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Measure loading alone: from nothing to a first token, and packing weights against copying
    #[arg(long, conflicts_with_all = ["prompt_tokens", "generate_tokens", "depth", "sessions",
          "profile", "host_time", "trace"])]
    pub load: bool,
    /// Show where the device's time goes, kernel by kernel, against what it could do
    #[arg(long)]
    pub profile: bool,
    /// Measure the processor's time in a step alone: on a driver that executes nothing, that is all
    #[arg(long, conflicts_with_all = ["profile", "trace"])]
    pub host_time: bool,
    /// Write what host and device did when, for Perfetto or chrome://tracing; measures slower
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// What kernels may be chosen by: the daemon's setting
    #[arg(long, value_name = "HOW", default_value = "fastest")]
    pub numerics: Numerics,
    /// Measure although other programs keep the machine busy
    #[arg(long)]
    pub force: bool,
    /// Element type of the KV cache [default: f16 where the device has it, else f32]
    #[arg(long, value_name = "TYPE")]
    pub kv_dtype: Option<KvDtype>,
    /// Device by index, name or UUID (see `hob devices`)
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

//! Arguments of `hob tune`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::config;

const TUNE_AFTER_HELP: &str = "\
hobd measures by itself while nobody waits for it; this does it at once, and shows what came of it.
A shape is rows of a lane x tokens of a tile / rows of lanes that share a sum; behind \"matrix\",
\"half\" or \"bytes\", those of a tile of such numbers. Of attention it is query heads x tokens of a
workgroup, 1024 positions deep. One that computes other than the reference is never used; one that
gives other bits than the default, by \"fastest\" alone.

Examples:
  hob tune --model model.gguf
  hob tune --show
  hob tune --show --json --device llvmpipe
  hob tune --reset";

/// Options of `hob tune`.
#[derive(Debug, Args)]
#[command(after_help = TUNE_AFTER_HELP)]
pub struct TuneOptions {
    /// Model of the store, or a GGUF file, whose kernels are measured
    #[arg(short, long, value_name = "MODEL", required_unless_present_any = ["show", "reset"])]
    pub model: Option<PathBuf>,
    /// Device by index, name or UUID (see `hob devices`)
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// What may be chosen by: the daemon's setting
    #[arg(long, value_name = "HOW", default_value = "exact")]
    pub numerics: Numerics,
    /// Folder of what was measured [default: that of your own daemon]
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Show what was measured on the device before, and measure nothing
    #[arg(long, conflicts_with_all = ["model", "reset"])]
    pub show: bool,
    /// Forget what was measured on the device
    #[arg(long)]
    pub reset: bool,
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}

/// What kernels may be chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Numerics {
    /// One order of summation, in f32
    Exact,
    /// Speed alone
    Fastest,
}

impl From<Numerics> for config::Numerics {
    fn from(numerics: Numerics) -> Self {
        match numerics {
            Numerics::Exact => Self::Exact,
            Numerics::Fastest => Self::Fastest,
        }
    }
}

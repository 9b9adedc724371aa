//! `hob lora`.

use clap::{Args, Subcommand};

use crate::config::Lora;

const AFTER_HELP: &str = "\
An adapter changes what a model says for the sessions and requests that name it (--lora). It is
loaded beside the model, which stays where it is; those of the configuration (lora) are there from
the start. Only root and the daemon's own user load and unload.

Examples:
  hob lora
  hob lora load law=./law.gguf
  hob run --lora law=0.8 \"What is a tort?\"
  hob lora unload law";

/// Options of `hob lora`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP, args_conflicts_with_subcommands = true)]
pub struct LoraOptions {
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
    /// Model whose adapters to list [default: the daemon's]
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<String>,
    /// What to do instead of listing.
    #[command(subcommand)]
    pub action: Option<LoraAction>,
}

/// What `hob lora` can do beside listing.
#[derive(Debug, Subcommand)]
pub enum LoraAction {
    /// Load an adapter beside its model
    Load {
        /// What to call it, and its GGUF file
        #[arg(value_name = "NAME=PATH")]
        lora: Lora,
        /// Model that it is for [default: the daemon's]
        #[arg(short, long, value_name = "MODEL")]
        model: Option<String>,
    },
    /// Take an adapter away that no session uses
    Unload {
        /// Name of the adapter
        #[arg(value_name = "NAME")]
        name: String,
        /// Model that it is for [default: the daemon's]
        #[arg(short, long, value_name = "MODEL")]
        model: Option<String>,
    },
}

//! The command line's grammar and its help texts; no behaviour.

mod bench;
mod embed;
mod generation;
mod lora;
mod model;
mod sessions;
mod store;
mod tune;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

pub use bench::BenchOptions;
pub use embed::EmbedOptions;
pub use generation::{ChatOptions, RunOptions, SamplingOptions};
pub use lora::{LoraAction, LoraOptions};
pub use model::{
    DetokenizeOptions, InspectOptions, KvDtype, PerplexityOptions, QuantizeOptions, TokenizeOptions,
};
pub use store::{ModelsAction, ModelsOptions, PullOptions, RmOptions};
pub use tune::{Numerics, TuneOptions};

const ABOUT: &str = "Run language models on any Vulkan device, through the hobd daemon";

const AFTER_HELP: &str = "\
Examples:
  hob pull hf:OWNER/REPO                fetch a model of the Hugging Face hub
  hob run \"Name three rivers.\"          answer a prompt; starts hobd when none runs
  hob chat                              talk with the model
  git diff | hob run \"Explain this:\"    a prompt from words and a pipe
  hob devices                           the Vulkan devices of this machine
  hob inspect model.gguf                what a model file holds

Exit status:
  0    done
  1    the request failed
  2    the command line was wrong
  3    hobd could not be reached or started, or the connection broke
  65   the input was not usable (not UTF-8, not JSON, too short)
  69   no Vulkan loader, no device, or the device failed
  78   a model file or a setting was not usable
  130  cancelled by Ctrl-C

`hob COMMAND --help` shows each command's options and examples.";

pub use sessions::{SessionsAction, SessionsOptions};

/// `hob` and its arguments.
#[derive(Debug, Parser)]
#[command(
    name = "hob",
    version,
    about = ABOUT,
    after_help = AFTER_HELP,
    max_term_width = 100,
    disable_help_subcommand = true
)]
pub struct Arguments {
    /// Options of every command.
    #[command(flatten)]
    pub global: GlobalOptions,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub struct GlobalOptions {
    /// Socket of the daemon [default: your own daemon's, else the system service's]
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "HOB_SOCKET",
        hide_env_values = true,
        value_parser = may_be_empty(),
        help_heading = "Global options"
    )]
    pub socket: Option<PathBuf>,
}

/// A path, or nothing: a variable that is set to nothing counts as not set.
fn may_be_empty() -> impl clap::builder::TypedValueParser<Value = PathBuf> {
    use clap::builder::{OsStringValueParser, TypedValueParser as _};
    OsStringValueParser::new().map(PathBuf::from)
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer one prompt, streaming the text as it comes
    Run(RunOptions),
    /// Talk with the model, keeping the conversation in one session
    Chat(ChatOptions),
    /// Turn texts into vectors that tell what is alike
    Embed(EmbedOptions),
    /// Show the daemon's model, device, memory and counters
    #[command(after_help = "\
Examples:
  hob status
  hob status --json | jq .model.name")]
    Status(StatusOptions),
    /// Watch what the daemon does, until `q`
    #[command(after_help = "\
Root and the daemon's own user see what each user has, others what they have themselves.

Examples:
  hob top
  hob top --once | grep speed")]
    Top(TopOptions),
    /// Print the daemon's counters in the text format of Prometheus
    #[command(after_help = "\
Times of steps, batch sizes, tokens computed and cached, pages of the KV cache, device memory,
recoveries. Counts of all users together; never a text.

Examples:
  hob metrics > /var/lib/node_exporter/textfile/hob.prom
  hob metrics | grep step_seconds")]
    Metrics,
    /// List the Vulkan devices of this machine (needs no daemon)
    #[command(after_help = "\
Any of index, name or UUID can be given to hobd, `hob bench` and `hob perplexity` as --device.

Examples:
  hob devices
  hob devices --json")]
    Devices(DevicesOptions),
    /// List your sessions, make, fork, shorten or close one
    #[command(after_help = "\
A session keeps the cache of a prompt: a later prompt with the same beginning starts at once.

Examples:
  hob sessions
  hob sessions --json
  hob sessions create notes --priority background --ttl 3600
  hob sessions fork notes --as draft
  hob sessions truncate draft 100
  hob sessions close notes")]
    Sessions(SessionsOptions),
    /// List a model's LoRA adapters, load or unload one
    Lora(LoraOptions),
    /// Fetch a model into the store
    Pull(PullOptions),
    /// List the models of the store, or what hob can run
    Models(ModelsOptions),
    /// Remove a model from the store
    Rm(RmOptions),
    /// End the daemon; it saves its sessions first
    #[command(after_help = "\
Waits until the daemon has ended. One that systemd started is also ended by `systemctl stop hobd`;
its socket starts it again when somebody connects.

Examples:
  hob stop
  hob stop --socket /tmp/other.sock && hob run \"Hello\"")]
    Stop,
    /// Turn text on stdin into token ids
    Tokenize(TokenizeOptions),
    /// Turn token ids back into text
    Detokenize(DetokenizeOptions),
    /// Show the metadata and tensors of a GGUF model file
    Inspect(InspectOptions),
    /// Write a GGUF model file in another tensor type
    Quantize(QuantizeOptions),
    /// Measure how well a model predicts a text (needs no daemon)
    Perplexity(PerplexityOptions),
    /// Measure a model's speed on a device (needs no daemon)
    Bench(BenchOptions),
    /// Measure which shapes of the kernels are the fastest on this device
    Tune(TuneOptions),
    /// Show what the driver's compiler makes of every shader; fails where registers spill
    #[command(hide = true)]
    ShaderStats(ShaderStatsOptions),
    /// Print a completion script for a shell
    #[command(after_help = "\
Examples:
  hob completions bash > ~/.local/share/bash-completion/completions/hob
  hob completions zsh > ~/.zfunc/_hob
  hob completions fish > ~/.config/fish/completions/hob.fish")]
    Completions(CompletionsOptions),
    /// Write the man pages of all commands
    #[command(after_help = "\
Examples:
  hob man ~/.local/share/man/man1
  hob man | man -l -")]
    Man(ManOptions),
}

/// Options of `hob status`.
#[derive(Debug, Args)]
pub struct StatusOptions {
    /// Print the daemon's answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `hob top`.
#[derive(Debug, Args)]
pub struct TopOptions {
    /// Print one state and end, for scripts
    #[arg(long)]
    pub once: bool,
}

/// Options of `hob devices`.
#[derive(Debug, Args)]
pub struct DevicesOptions {
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}

/// Options of `hob shader-stats`.
#[derive(Debug, Args)]
pub struct ShaderStatsOptions {
    /// Device by index, name or UUID (see `hob devices`)
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

/// Options of `hob completions`.
#[derive(Debug, Args)]
pub struct CompletionsOptions {
    /// Shell to write for
    pub shell: Shell,
}

/// Options of `hob man`.
#[derive(Debug, Args)]
pub struct ManOptions {
    /// Folder for the pages; without it, the page of `hob` is printed
    #[arg(value_name = "DIR")]
    pub directory: Option<PathBuf>,
}

//! Arguments of the commands that work on the store of models.

use clap::{Args, Subcommand};

const PULL_AFTER_HELP: &str = "\
SOURCE is one of
  hf:OWNER/REPO             a repository of the Hugging Face hub; without a file or a quantisation,
                            Q4_K_M is taken, or the only model there is
  hf:OWNER/REPO:Q8_0        its model of this quantisation
  hf:OWNER/REPO/FILE.gguf   one of its files
  https://HOST/FILE.gguf    a file behind a URL; a page of the hub will do
  PATH                      a file of this machine, copied (or left where it is: --link)
All parts of a split model are fetched. A pull that was interrupted goes on where it was when it
is given again. A model is in the store once its size, its checksum and its header hold, and not
before.

HF_TOKEN, or ~/.cache/huggingface/token, is sent to the hub alone; HF_ENDPOINT names another hub. Of
proxies, HTTPS_PROXY, HTTP_PROXY and NO_PROXY are heeded.

Examples:
  hob pull hf:bartowski/SmolLM2-135M-Instruct-GGUF:Q4_K_M --name smol
  hob run -m smol \"Name three rivers.\"
  hob pull ./model.gguf --link";

const MODELS_AFTER_HELP: &str = "\
The name or an alias of a model can be given wherever --model is taken. Without one, hobd takes the
file default.gguf in the store's folder, the model called `default`, or the only one there is.

Examples:
  hob models
  hob models --json | jq -r '.[].name'
  hob models --supported
  hob models load small                 of a running daemon; `hob models unload small`";

const RM_AFTER_HELP: &str = "\
The model's files are deleted; those of a linked model stay where they are. A model that hobd has
loaded is not removed.

Examples:
  hob rm smol
  hob rm smol --yes";

/// Options of `hob pull`.
#[derive(Debug, Args)]
#[command(after_help = PULL_AFTER_HELP)]
pub struct PullOptions {
    /// Where the model is
    pub source: String,
    /// What to call it [default: its file's name, in lower case]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// What else to call it; may be given several times
    #[arg(long, value_name = "NAME")]
    pub alias: Vec<String>,
    /// SHA-256 that the file must have; the hub tells those of its own files
    #[arg(long, value_name = "HEX")]
    pub sha256: Option<String>,
    /// Leave a file of this machine where it is
    #[arg(long)]
    pub link: bool,
    /// Print the model as a JSON object
    #[arg(long)]
    pub json: bool,
}

/// Options of `hob models`.
#[derive(Debug, Args)]
#[command(after_help = MODELS_AFTER_HELP, args_conflicts_with_subcommands = true)]
pub struct ModelsOptions {
    /// List what this hob can run instead: architectures and tensor types
    #[arg(long)]
    pub supported: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// What to do with one of the daemon's models; nothing lists them all
    #[command(subcommand)]
    pub action: Option<ModelsAction>,
}

/// What `hob models` does with one of the daemon's models.
#[derive(Debug, Subcommand)]
pub enum ModelsAction {
    /// Put a model on the device, where it is ready before it is first asked
    Load {
        /// Its name or an alias
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Take a model off the device; its sessions stay
    Unload {
        /// Its name or an alias
        #[arg(value_name = "NAME")]
        name: String,
    },
}

/// Options of `hob rm`.
#[derive(Debug, Args)]
#[command(after_help = RM_AFTER_HELP)]
pub struct RmOptions {
    /// Name or alias of the model
    pub name: String,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

//! Arguments of `hob embed`.

use std::path::PathBuf;

use clap::Args;

use crate::protocol::Pooling;

const EMBED_AFTER_HELP: &str = "\
Each TEXT, or each line of stdin that is not empty, becomes a line: the values of its vector with a
space between them, or with --json an object {text, embedding, tokens, truncated}. Texts of like
meaning have vectors of like direction. Embedding models are made for this; a model that generates
text gives the last token's vector, or with --pooling mean that of all.

Examples:
  hob embed \"a river\" \"a lake\"
  hob embed --json < sentences.txt > vectors.jsonl
  hob embed --model bge-small.gguf \"a river\" | wc -w";

/// Options of `hob embed`.
#[derive(Debug, Args)]
#[command(after_help = EMBED_AFTER_HELP)]
pub struct EmbedOptions {
    /// Texts; without them, the lines of stdin
    #[arg(value_name = "TEXT")]
    pub texts: Vec<String>,
    /// How a text's tokens become one vector: mean, cls or last [default: the model's own way]
    #[arg(long, value_name = "HOW", value_parser = pooling)]
    pub pooling: Option<Pooling>,
    /// Keep the first values of each vector alone (for models that were trained for it)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub dimensions: Option<u32>,
    /// Print vectors as the model makes them, not made to have length 1
    #[arg(long)]
    pub raw: bool,
    /// Refuse a text that is longer than the model's context, rather than cut its end off
    #[arg(long)]
    pub no_truncate: bool,
    /// Model of the daemon, where one must be started: one of the store, or a GGUF file
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Print a JSON object a line
    #[arg(long)]
    pub json: bool,
}

fn pooling(text: &str) -> Result<Pooling, String> {
    match text {
        "mean" => Ok(Pooling::Mean),
        "cls" => Ok(Pooling::Cls),
        "last" => Ok(Pooling::Last),
        _ => Err("wanted mean, cls or last".to_owned()),
    }
}

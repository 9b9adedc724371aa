//! Arguments of the commands that generate text.

use std::path::PathBuf;

use clap::Args;

use crate::config::{
    FREQUENCY_PENALTY, MIN_P, PRESENCE_PENALTY, REPEAT_PENALTY, SamplingSetting, TEMPERATURE,
    TOP_K, TOP_P,
};
use crate::protocol::Lora;

const RUN_AFTER_HELP: &str = "\
The prompt is the words joined by spaces. When stdin is piped it is appended below them, or is the
whole prompt when there are no words; a word `-` says where it goes. The text streams to stdout;
everything else goes to stderr. Ctrl-C cancels the generation, never the daemon; a second Ctrl-C
leaves at once.

Examples:
  hob run Why is the sky blue?
  hob run --system \"Answer in one word.\" \"Capital of France?\"
  hob run \"Summarise this:\" < letter.txt
  hob run \"Translate to German:\" - \"Keep the names.\" < note.txt
  hob run --raw --max-tokens 20 \"The quick brown fox\"
  hob run --tools weather.json \"Will it rain in Oslo?\"        the call comes as text
  hob run --json-schema city.json \"Tell me about Oslo.\"
  hob run --temperature 0 --json \"2 + 2 =\" | jq -r .text
  hob run --session manual \"$(cat manual.txt) How do I reset it?\"   faster the second time";

const CHAT_AFTER_HELP: &str = "\
At the prompt:
  /help                    the list of commands
  /clear                   forget the conversation
  /system TEXT             set the system message (alone: show it)
  /set NAME VALUE          temperature, top-k, top-p, min-p, repeat-penalty, presence-penalty,
                           frequency-penalty, seed, max-tokens
  /stats                   token rates of the last answer
  /save FILE               write the conversation as JSON
  /quit                    leave (also Ctrl-D)

A trailing backslash continues on the next line. Ctrl-C stops an answer, or clears the line.

Examples:
  hob chat
  hob chat --system \"You are a patient teacher.\" --temperature 0.5";

/// Options of `hob run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_AFTER_HELP)]
pub struct RunOptions {
    /// The prompt; `-` stands for stdin
    #[arg(value_name = "PROMPT")]
    pub prompt: Vec<String>,
    /// System message put before the prompt
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub system: Option<String>,
    /// Tools that the model may call: a JSON array of objects, as the model's template wants them
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    pub tools: Option<PathBuf>,
    /// Have the answer follow the JSON Schema of a file
    #[arg(long, value_name = "FILE", conflicts_with = "grammar")]
    pub json_schema: Option<PathBuf>,
    /// Have the answer follow the grammar of a file: Lark where its name ends in .lark or its first
    /// line says %llguidance, else GBNF
    #[arg(long, value_name = "FILE")]
    pub grammar: Option<PathBuf>,
    /// Continue the text as it stands: no chat template
    #[arg(long)]
    pub raw: bool,
    /// Keep the prompt's cache in this session: a prompt that begins alike starts faster
    #[arg(long, value_name = "NAME")]
    pub session: Option<String>,
    /// Model: one of the daemon's by name; where a daemon must be started, also a file or a folder
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// LoRA adapter of the model, by its name; may be repeated
    #[arg(long, value_name = "NAME[=SCALE]", value_parser = lora)]
    pub lora: Vec<Lora>,
    /// Print the final result as one JSON object instead of streaming text
    #[arg(long)]
    pub json: bool,
    /// Print token counts and rates to stderr
    #[arg(long)]
    pub stats: bool,
    /// How tokens are chosen.
    #[command(flatten)]
    pub sampling: SamplingOptions,
}

/// An adapter, with a scale of 1 where none is given.
pub(crate) fn lora(text: &str) -> Result<Lora, String> {
    let Some((name, scale)) = text.split_once('=') else {
        return Ok(Lora { name: text.to_owned(), scale: 1.0 });
    };
    let scale = number_in(scale, -100.0, 100.0, "a scale from -100 to 100")?;
    Ok(Lora { name: name.to_owned(), scale })
}

/// Options of `hob chat`.
#[derive(Debug, Args)]
#[command(after_help = CHAT_AFTER_HELP)]
pub struct ChatOptions {
    /// System message of the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Model: one of the daemon's by name; where a daemon must be started, also a file or a folder
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// How tokens are chosen.
    #[command(flatten)]
    pub sampling: SamplingOptions,
}

/// How the next token is chosen, and when to stop. What is not given, the daemon decides.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingOptions {
    /// [`TEMPERATURE`].
    #[arg(long, value_name = "NUMBER", help = TEMPERATURE.help,
          value_parser = within(TEMPERATURE), allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// [`TOP_K`].
    #[arg(long, value_name = "COUNT", help = TOP_K.help, allow_negative_numbers = true)]
    pub top_k: Option<u32>,
    /// [`TOP_P`].
    #[arg(long, value_name = "SHARE", help = TOP_P.help,
          value_parser = within(TOP_P), allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// [`MIN_P`].
    #[arg(long, value_name = "SHARE", help = MIN_P.help,
          value_parser = within(MIN_P), allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// [`REPEAT_PENALTY`].
    #[arg(long, value_name = "FACTOR", help = REPEAT_PENALTY.help,
          value_parser = within(REPEAT_PENALTY), allow_negative_numbers = true)]
    pub repeat_penalty: Option<f32>,
    /// [`PRESENCE_PENALTY`].
    #[arg(long, value_name = "NUMBER", help = PRESENCE_PENALTY.help,
          value_parser = within(PRESENCE_PENALTY), allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    /// [`FREQUENCY_PENALTY`].
    #[arg(long, value_name = "NUMBER", help = FREQUENCY_PENALTY.help,
          value_parser = within(FREQUENCY_PENALTY), allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    /// Seed of the randomness: the same seed gives the same text
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub seed: Option<u64>,
    /// Most tokens to generate
    #[arg(long, value_name = "COUNT")]
    pub max_tokens: Option<u32>,
    /// Stop before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
}

/// Parses a number of a setting's range.
fn within(
    setting: SamplingSetting,
) -> impl Fn(&str) -> Result<f32, String> + Clone + Send + Sync + 'static {
    move |text| setting.parse(text)
}

fn number_in(text: &str, low: f32, high: f32, wanted: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if (low..=high).contains(&number) => Ok(number),
        _ => Err(format!("wanted {wanted}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;
    use crate::config::SAMPLING_SETTINGS;

    #[test]
    fn the_command_line_takes_what_the_daemon_takes() {
        let parse = |option: &str, value: f32| {
            let command = SamplingOptions::augment_args(Command::new("x"));
            command.try_get_matches_from(["x", option, &value.to_string()])
        };
        for setting in SAMPLING_SETTINGS {
            let option = format!("--{}", setting.name.replace('_', "-"));
            assert!(parse(&option, setting.default).is_ok(), "{option}");
            assert!(parse(&option, setting.least).is_ok(), "{option}");
            assert!(parse(&option, setting.least - 1.0).is_err(), "{option}");
            let above = parse(&option, setting.most * 2.0);
            let message = above.expect_err(&option).to_string();
            assert!(setting.name == "top_k" || message.contains(setting.wanted), "{message}");
            assert!(CHAT_AFTER_HELP.contains(&option[2..]), "{option}");
        }
    }
}

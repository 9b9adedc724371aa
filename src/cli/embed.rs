//! `hob embed`: a vector for each text.

use std::io::IsTerminal as _;

use serde::Serialize;

use super::args::{EmbedOptions, GlobalOptions};
use super::daemon::{self, Connection};
use super::output::{self, Output};
use super::{CliError, exit, paths};
use crate::protocol::{EmbedParams, EmbedResult, InputTexts, TextEmbedding, method};

/// Texts of one request: enough to fill a step, and first lines come while the rest is computed.
const TEXTS_A_REQUEST: usize = 32;

/// A line of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    text: &'a str,
    #[serde(flatten)]
    result: &'a TextEmbedding,
}

pub(crate) fn run(global: &GlobalOptions, options: &EmbedOptions) -> Result<u8, CliError> {
    let texts = read_texts(&options.texts)?;
    let Connection { mut client, daemon, model, .. } =
        daemon::connect_or_start(global, options.model.as_deref())?;
    let count = TEXTS_A_REQUEST.min(daemon.limits.embed_texts_max.max(1) as usize);
    let mut output = Output::stdout();
    let mut truncated = 0;
    for texts in texts.chunks(count) {
        let params = EmbedParams {
            model: model.clone(),
            input: InputTexts(texts.to_vec()),
            pooling: options.pooling,
            normalize: Some(!options.raw),
            truncate: Some(!options.no_truncate),
            dimensions: options.dimensions,
            ..EmbedParams::default()
        };
        let answer: EmbedResult = client.call(method::EMBED, &params)?;
        for (text, result) in texts.iter().zip(&answer.embeddings) {
            truncated += usize::from(result.truncated);
            let line = match options.json {
                true => serde_json::to_string(&Line { text, result })
                    .map_err(|source| CliError::Encode { source })?,
                false => plain(&result.embedding),
            };
            output.line(&line)?;
        }
    }
    if truncated > 0 {
        let (all, most) = (texts.len(), daemon.model.context_tokens);
        output::note(&format_args!(
            "of {all} texts, {truncated} had more than {most} tokens: their ends were left out"
        ));
    }
    Ok(exit::DONE)
}

/// Values with a space between them, in the fewest digits that give them back.
fn plain(values: &[f32]) -> String {
    let values: Vec<String> = values.iter().map(f32::to_string).collect();
    values.join(" ")
}

/// The texts that are named, or the lines of stdin that have any.
fn read_texts(named: &[String]) -> Result<Vec<String>, CliError> {
    if !named.is_empty() {
        return Ok(named.to_vec());
    }
    let piped = match std::io::stdin().is_terminal() {
        true => String::new(),
        false => paths::read_stdin(paths::PROMPT_BYTES_MAX)?,
    };
    let lines = piped.lines().filter(|line| !line.is_empty());
    let texts: Vec<String> = lines.map(str::to_owned).collect();
    if texts.is_empty() { Err(CliError::NoTexts) } else { Ok(texts) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_so_that_they_can_be_read_back() {
        assert_eq!(plain(&[0.1, -2.0, 1e-20]), "0.1 -2 0.00000000000000000001");
    }
}

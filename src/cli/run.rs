//! `hob run`: one prompt, one answer.

use std::fs;
use std::io::IsTerminal;
use std::path::Path;

use super::args::{GlobalOptions, RunOptions};
use super::daemon::{self, Connection};
use super::interrupt::Interrupts;
use super::output::Output;
use super::{CliError, exit, generate, output, paths};
use crate::chat::JsonObject;
use crate::protocol::{
    FinishReason, GenerateParams, GrammarParams, Message, ModelFacts, SessionRef, TemplateJson,
};

/// Place of stdin within the prompt.
const STDIN: &str = "-";

pub(crate) fn run(global: &GlobalOptions, options: &RunOptions) -> Result<u8, CliError> {
    let prompt = read_prompt(&options.prompt)?;
    let Connection { mut client, daemon, model, .. } =
        daemon::connect_or_start(global, options.model.as_deref())?;
    let mut params = with_prompt(options, prompt, &daemon.model)?;
    params.model.clone_from(&model);
    params.json_schema = options.json_schema.as_deref().map(read_schema).transpose()?;
    params.grammar = options.grammar.as_deref().map(read_grammar).transpose()?;
    let lora = (!options.lora.is_empty()).then(|| options.lora.clone());
    match &options.session {
        Some(name) => generate::ensure_session(&mut client, name, model.clone(), lora)?,
        None => params.lora = lora,
    }
    let interrupts = Interrupts::catch()?;
    let mut output = Output::stdout();
    let result = if options.json {
        let result = generate::whole(&mut client, &params, &interrupts)?;
        output.json(&result)?;
        generate::finished(result)?
    } else {
        generate::stream(&mut client, params, &interrupts, &mut output)?
    };
    if !options.json {
        generate::note_early_end(&result);
    }
    if options.stats {
        eprintln!("{}", generate::statistics(&result));
    }
    Ok(match (result.finish_reason, result.error) {
        (FinishReason::Cancelled, None) => exit::CANCELLED,
        (FinishReason::Cancelled, Some(_)) => exit::FAILED,
        _ => exit::DONE,
    })
}

/// The prompt of words and of stdin, where that is piped or named.
fn read_prompt(words: &[String]) -> Result<String, CliError> {
    let times = words.iter().filter(|word| *word == STDIN).count();
    if times > 1 {
        return Err(CliError::StdinTwice { times });
    }
    let wanted = times == 1 || !std::io::stdin().is_terminal();
    let piped = if wanted { paths::read_stdin(paths::PROMPT_BYTES_MAX)? } else { String::new() };
    let prompt = compose(words, &piped);
    if prompt.trim().is_empty() { Err(CliError::NoPrompt) } else { Ok(prompt) }
}

/// Words joined by spaces, stdin in place of `-` or below them. The newlines that end stdin are not
/// a part of the prompt.
fn compose(words: &[String], piped: &str) -> String {
    let piped = piped.trim_end_matches(['\n', '\r']);
    let parts: Vec<&str> =
        words.iter().map(|word| if word == STDIN { piped } else { word }).collect();
    let text = parts.join(" ");
    match (text.is_empty(), piped.is_empty() || words.iter().any(|word| word == STDIN)) {
        (true, _) => piped.to_owned(),
        (false, true) => text,
        (false, false) => format!("{text}\n\n{piped}"),
    }
}

fn with_prompt(
    options: &RunOptions,
    prompt: String,
    model: &ModelFacts,
) -> Result<GenerateParams, CliError> {
    let params = GenerateParams {
        session: options.session.clone().map(SessionRef::Name),
        ..generate::params(&options.sampling)
    };
    if options.raw {
        return Ok(GenerateParams { prompt: Some(prompt), ..params });
    }
    if !model.has_chat_template {
        for (option, given) in
            [("--system", options.system.is_some()), ("--tools", options.tools.is_some())]
        {
            if given {
                return Err(CliError::NoPlaceInPrompt { model: model.name.clone(), option });
            }
        }
        output::note(&format_args!(
            "{} has no chat template: the prompt is continued as it stands (--raw)",
            model.name
        ));
        return Ok(GenerateParams { prompt: Some(prompt), ..params });
    }
    let messages = messages(options.system.as_deref(), prompt);
    let tools = options.tools.as_deref().map(read_tools).transpose()?;
    Ok(GenerateParams { messages: Some(messages), tools, ..params })
}

/// The tools of a file, as they stand there.
fn read_tools(path: &Path) -> Result<TemplateJson, CliError> {
    let text = read_file(path)?;
    let wrong = |source| CliError::NotTools { path: path.to_owned(), source };
    let _: Vec<JsonObject> = serde_json::from_str(&text).map_err(wrong)?;
    serde_json::from_str(&text).map_err(wrong)
}

/// The schema of a file, as it stands there.
fn read_schema(path: &Path) -> Result<TemplateJson, CliError> {
    let wrong = |source| CliError::NotSchema { path: path.to_owned(), source };
    serde_json::from_str(&read_file(path)?).map_err(wrong)
}

/// The grammar of a file, by the file's name or its first line.
fn read_grammar(path: &Path) -> Result<GrammarParams, CliError> {
    let text = read_file(path)?;
    let is_lark = path.extension().is_some_and(|extension| extension == "lark")
        || text.trim_start().starts_with("%llguidance");
    let kind = if is_lark { "lark" } else { "gbnf" };
    Ok(GrammarParams { kind: kind.into(), text: Some(text), root: None })
}

fn read_file(path: &Path) -> Result<String, CliError> {
    fs::read_to_string(path).map_err(|source| CliError::ReadFile { path: path.to_owned(), source })
}

fn messages(system: Option<&str>, prompt: String) -> Vec<Message> {
    let system = system.map(|text| Message::new("system", text));
    system.into_iter().chain([Message::new("user", prompt)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn composed(words: &[&str], piped: &str) -> String {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        compose(&words, piped)
    }

    #[test]
    fn stdin_goes_below_the_words_or_where_the_dash_is() {
        assert_eq!(composed(&["a", "b"], ""), "a b");
        assert_eq!(composed(&[], "text\n"), "text");
        assert_eq!(composed(&["sum", "up:"], "text\n\n"), "sum up:\n\ntext");
        assert_eq!(composed(&["say", "-", "twice"], "text\n"), "say text twice");
        assert_eq!(composed(&["-"], " text"), " text");
    }
}

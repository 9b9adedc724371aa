//! `hob tokenize` and `hob detokenize`: by a model file in this process, or by the daemon.

use std::path::Path;

use super::args::{DetokenizeOptions, GlobalOptions, TokenizeOptions};
use super::client::Client;
use super::output::Output;
use super::table::{Align, Table};
use super::{CliError, daemon, exit, paths};
use crate::hf;
use crate::protocol::{DetokenizeParams, DetokenizeResult, TokenizeParams, TokenizeResult, method};
use crate::tokenizer::{Tokenizer, VocabSource};

pub(crate) fn tokenize(global: &GlobalOptions, options: &TokenizeOptions) -> Result<u8, CliError> {
    let fallback = options.tokenizer_fallback;
    let mut vocabulary = Vocabulary::open(global, options.model.as_deref(), fallback)?;
    let text = paths::read_stdin(paths::TEXT_BYTES_MAX)?;
    let tokens = vocabulary.tokens(text, options.add_special, options.parse_special)?;
    let mut output = Output::stdout();
    if options.json {
        let ids = serde_json::to_string(&tokens).map_err(|source| CliError::Encode { source })?;
        output.line(&ids)?;
    } else {
        let mut table = Table::new(&[("ID", Align::Right), ("TEXT", Align::Left)]);
        for token in tokens {
            table.row(vec![token.to_string(), vocabulary.token_text(token)?]);
        }
        table.write(&mut output)?;
    }
    Ok(exit::DONE)
}

pub(crate) fn detokenize(
    global: &GlobalOptions,
    options: &DetokenizeOptions,
) -> Result<u8, CliError> {
    let fallback = options.tokenizer_fallback;
    let mut vocabulary = Vocabulary::open(global, options.model.as_deref(), fallback)?;
    let tokens = if options.tokens.is_empty() {
        serde_json::from_str(&paths::read_stdin(paths::TEXT_BYTES_MAX)?)
            .map_err(|source| CliError::NotTokenIds { source })?
    } else {
        options.tokens.clone()
    };
    let text = vocabulary.text(tokens)?;
    let mut output = Output::stdout();
    if options.json {
        output.json(&text)?
    } else {
        output.text(&text)?
    }
    Ok(exit::DONE)
}

/// Source of the vocabulary.
enum Vocabulary {
    File(Box<Tokenizer>),
    Daemon(Client),
}

impl Vocabulary {
    fn open(
        global: &GlobalOptions,
        model: Option<&Path>,
        fallback: bool,
    ) -> Result<Self, CliError> {
        match model {
            Some(model) => {
                let tokenizer = open_tokenizer(&paths::model(model)?, fallback)?;
                Ok(Self::File(Box::new(tokenizer)))
            }
            None => Ok(Self::Daemon(daemon::connect(global)?.client)),
        }
    }

    fn tokens(
        &mut self,
        text: String,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<u32>, CliError> {
        match self {
            Self::File(tokenizer) => Ok(tokenizer.encode(&text, add_special, parse_special)?),
            Self::Daemon(client) => {
                let (add_special, parse_special) = (Some(add_special), Some(parse_special));
                let params = TokenizeParams { model: None, text, add_special, parse_special };
                let result: TokenizeResult = client.call(method::TOKENIZE, &params)?;
                Ok(result.tokens)
            }
        }
    }

    fn text(&mut self, tokens: Vec<u32>) -> Result<String, CliError> {
        match self {
            Self::File(tokenizer) => Ok(tokenizer.decode(&tokens, true)?),
            Self::Daemon(client) => {
                let result: DetokenizeResult =
                    client.call(method::DETOKENIZE, &DetokenizeParams { model: None, tokens })?;
                Ok(result.text)
            }
        }
    }

    /// Quoted text of one token, or its bytes if it is part of a character.
    fn token_text(&mut self, token: u32) -> Result<String, CliError> {
        match self {
            Self::File(tokenizer) => {
                let bytes = tokenizer.token_bytes(token)?;
                Ok(match str::from_utf8(&bytes) {
                    Ok(text) => format!("{text:?}"),
                    Err(_) => format!("\"{}\"", bytes.escape_ascii()),
                })
            }
            Self::Daemon(_) => Ok(format!("{:?}", self.text(vec![token])?)),
        }
    }
}

/// The tokenizer of a model file, or of one with a vocabulary alone.
fn open_tokenizer(path: &Path, fallback: bool) -> Result<Tokenizer, CliError> {
    let file = hf::open_model(path, None)?;
    let mut source = VocabSource::from_metadata(file.metadata())?;
    source.pre_fallback = fallback;
    Tokenizer::new(source)
        .map_err(|source| CliError::Vocabulary { path: path.to_owned(), source: Box::new(source) })
}

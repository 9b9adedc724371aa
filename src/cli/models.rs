//! `hob models` and `hob rm`: what the store holds, what hob can run, and removing a model.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use serde::Serialize;

use super::args::{GlobalOptions, ModelsAction, ModelsOptions, RmOptions};
use super::output::{self, Output, bytes};
use super::table::{Align, Table};
use super::{CliError, daemon, exit, paths};
use crate::model::{FAMILIES, Family};
use crate::protocol::{
    ModelEntry, ModelFacts, ModelListResult, ModelLoadResult, ModelParams, ModelState,
    ModelUnloadResult, NoParams, method,
};
use crate::store::{Entry, Store, StoreError};
use crate::tensor::DType;

/// A model of the store, as programs see it.
#[derive(Serialize)]
pub(super) struct Listed<'a> {
    name: &'a str,
    aliases: &'a [String],
    architecture: &'a str,
    quantization: &'a str,
    parameters: u64,
    context_tokens: u64,
    bytes: u64,
    path: PathBuf,
    linked: bool,
    source: &'a str,
    /// Seconds since 1970.
    added: u64,
    sha256: Vec<&'a str>,
    /// Its place in the daemon; `None` if no daemon answers or it has no such model.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<ModelState>,
}

impl<'a> Listed<'a> {
    pub(super) fn new(store: &Store, entry: &'a Entry) -> Self {
        Self {
            name: &entry.name,
            aliases: &entry.aliases,
            architecture: &entry.facts.architecture,
            quantization: &entry.facts.quantization,
            parameters: entry.facts.parameters,
            context_tokens: entry.facts.context_tokens,
            bytes: entry.bytes(),
            path: store.path(entry),
            linked: entry.is_linked(),
            source: &entry.source,
            added: entry.added,
            sha256: entry.files.iter().map(|file| file.sha256.as_str()).collect(),
            state: None,
        }
    }
}

pub(crate) fn list(global: &GlobalOptions, options: &ModelsOptions) -> Result<u8, CliError> {
    match &options.action {
        Some(action) => return act(global, action),
        None if options.supported => return supported(options.json),
        None => {}
    }
    let store = paths::store()?;
    let models = store.models()?;
    let daemon = models_of_daemon(global);
    let listed: Vec<Listed<'_>> = models
        .iter()
        .map(|entry| Listed { state: state(&daemon, entry), ..Listed::new(&store, entry) })
        .collect();
    let mut output = Output::stdout();
    if options.json {
        output.json(&listed)?;
        return Ok(exit::DONE);
    }
    if let Some(file) = store.default_file() {
        output::note(&format_args!("{} is taken where no model is named", file.display()));
    }
    let others: Vec<&ModelEntry> = daemon
        .iter()
        .filter(|model| !models.iter().any(|entry| entry.name == model.name))
        .collect();
    if listed.is_empty() && others.is_empty() {
        let folder = store.folder().display();
        output::note(&format_args!("no models in {folder}; `hob pull` fetches some"));
        return Ok(exit::DONE);
    }
    table(&listed, &others).write(&mut output)?;
    Ok(exit::DONE)
}

fn act(global: &GlobalOptions, action: &ModelsAction) -> Result<u8, CliError> {
    let mut client = daemon::connect(global)?.client;
    let params = |name: &String| ModelParams { model: Some(name.clone()) };
    match action {
        ModelsAction::Load { name } => {
            let loaded: ModelLoadResult = client.call(method::MODEL_LOAD, &params(name))?;
            output::note(&format_args!("{} is on the device", loaded.name));
        }
        ModelsAction::Unload { name } => {
            let left: ModelUnloadResult = client.call(method::MODEL_UNLOAD, &params(name))?;
            output::note(&format_args!("{} is off the device", left.name));
        }
    }
    Ok(exit::DONE)
}

/// The models of the daemon, where one answers.
fn models_of_daemon(global: &GlobalOptions) -> Vec<ModelEntry> {
    let asked = daemon::connect_if_running(global)
        .and_then(|mut client| client.call(method::MODEL_LIST, &NoParams {}).ok());
    asked.map_or_else(Vec::new, |list: ModelListResult| list.models)
}

fn state(daemon: &[ModelEntry], entry: &Entry) -> Option<ModelState> {
    daemon.iter().find(|model| model.name == entry.name).map(|model| model.state)
}

/// The store's models, and those that the daemon has from elsewhere.
fn table(listed: &[Listed<'_>], others: &[&ModelEntry]) -> Table {
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("ALIASES", Align::Left),
        ("ARCHITECTURE", Align::Left),
        ("TYPE", Align::Left),
        ("SIZE", Align::Right),
        ("CONTEXT", Align::Right),
        ("STATE", Align::Left),
        ("FILE", Align::Left),
    ]);
    for model in listed {
        table.row(vec![
            model.name.to_owned(),
            joined(model.aliases),
            model.architecture.to_owned(),
            model.quantization.to_owned(),
            bytes(model.bytes),
            model.context_tokens.to_string(),
            shown(model.state).into(),
            model.path.display().to_string(),
        ]);
    }
    for model in others {
        let known = |text: fn(&ModelFacts) -> String| model.facts.as_ref().map_or("-".into(), text);
        table.row(vec![
            model.name.clone(),
            joined(&model.aliases),
            known(|facts| facts.architecture.clone()),
            known(|facts| facts.quantization.clone()),
            known(|facts| bytes(facts.weights_bytes)),
            known(|facts| facts.context_tokens_trained.to_string()),
            shown(Some(model.state)).into(),
            "(hobd's own)".into(),
        ]);
    }
    table
}

fn joined(aliases: &[String]) -> String {
    if aliases.is_empty() { "-".into() } else { aliases.join(", ") }
}

fn shown(state: Option<ModelState>) -> &'static str {
    match state {
        Some(ModelState::Loaded) => "loaded",
        Some(ModelState::Loading) => "loading",
        Some(ModelState::Unloaded) | None => "-",
    }
}

/// Architectures and types this build can run.
#[derive(Serialize)]
struct Supported {
    architectures: Vec<Architecture>,
    types: Vec<&'static str>,
}

#[derive(Serialize)]
struct Architecture {
    name: &'static str,
    models: &'static str,
    features: &'static str,
}

fn supported(json: bool) -> Result<u8, CliError> {
    let architecture = |family: &Family| Architecture {
        name: family.architecture,
        models: family.models,
        features: family.features,
    };
    let supported = Supported {
        architectures: FAMILIES.iter().map(architecture).collect(),
        types: DType::ALL.iter().map(|dtype| dtype.name()).collect(),
    };
    let mut output = Output::stdout();
    if json {
        output.json(&supported)?;
        return Ok(exit::DONE);
    }
    let mut table = Table::new(&[
        ("ARCHITECTURE", Align::Left),
        ("MODELS", Align::Left),
        ("FEATURES", Align::Left),
    ]);
    for architecture in &supported.architectures {
        let cells = [architecture.name, architecture.models, architecture.features];
        table.row(cells.map(str::to_owned).to_vec());
    }
    table.write(&mut output)?;
    output.line(&format!("\ntensor types: {}", supported.types.join(", ")))?;
    Ok(exit::DONE)
}

pub(crate) fn remove(global: &GlobalOptions, options: &RmOptions) -> Result<u8, CliError> {
    let store = paths::store()?;
    let Some(entry) = store.find(&options.name)? else {
        let (name, known) = (options.name.clone(), store.names()?);
        return Err(StoreError::UnknownModel { name, known }.into());
    };
    let state = state(&models_of_daemon(global), &entry);
    if matches!(state, Some(ModelState::Loaded | ModelState::Loading)) {
        return Err(CliError::ModelLoaded { name: entry.name });
    }
    if !options.yes && !confirmed(&entry)? {
        output::note(&format_args!("{} is kept", entry.name));
        return Ok(exit::FAILED);
    }
    store.remove(&entry.name)?;
    let freed = if entry.is_linked() { 0 } else { entry.bytes() };
    output::note(&format_args!("{} is removed; {} are free again", entry.name, bytes(freed)));
    Ok(exit::DONE)
}

/// Asks on a terminal; elsewhere nobody can answer.
fn confirmed(entry: &Entry) -> Result<bool, CliError> {
    if !io::stdin().is_terminal() {
        return Err(CliError::NotConfirmed { name: entry.name.clone() });
    }
    let what = if entry.is_linked() { "forget" } else { "delete" };
    let (name, size) = (output::on_one_line(&entry.name), bytes(entry.bytes()));
    let source = output::on_one_line(&entry.source);
    let mut answer = String::new();
    write!(io::stderr(), "{what} {name} ({size}, from {source})? [y/N] ")
        .and_then(|()| io::stdin().read_line(&mut answer))
        .map_err(|source| CliError::Stdin { source })?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

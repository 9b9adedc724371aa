//! `hob lora`: lists, loads and unloads the adapters of a model.

use super::args::{GlobalOptions, LoraAction, LoraOptions};
use super::client::Client;
use super::output::{self, Output};
use super::table::{Align, Table};
use super::{CliError, daemon, exit};
use crate::protocol::{
    LoraEntry, LoraListResult, LoraLoadParams, LoraUnloadParams, LoraUnloadResult, ModelParams,
    method,
};

pub(crate) fn run(global: &GlobalOptions, options: &LoraOptions) -> Result<u8, CliError> {
    let mut client = daemon::connect(global)?.client;
    match &options.action {
        None => list(&mut client, options)?,
        Some(LoraAction::Load { lora, model }) => {
            // The daemon works in another folder.
            let path = std::path::absolute(&lora.path)
                .map_err(|source| CliError::ReadFile { path: lora.path.clone(), source })?;
            let params = LoraLoadParams {
                model: model.clone(),
                name: lora.name.clone(),
                path: path.to_string_lossy().into_owned(),
            };
            let loaded: LoraEntry = client.call(method::LORA_LOAD, &params)?;
            let size = output::bytes(loaded.bytes);
            output::note(&format_args!("loaded {} ({size} on the device)", loaded.name));
        }
        Some(LoraAction::Unload { name, model }) => {
            let params = LoraUnloadParams { model: model.clone(), name: name.clone() };
            let gone: LoraUnloadResult = client.call(method::LORA_UNLOAD, &params)?;
            output::note(&format_args!("unloaded {}", gone.name));
        }
    }
    Ok(exit::DONE)
}

fn list(client: &mut Client, options: &LoraOptions) -> Result<(), CliError> {
    let params = ModelParams { model: options.model.clone() };
    let list: LoraListResult = client.call(method::LORA_LIST, &params)?;
    let mut output = Output::stdout();
    if options.json {
        return output.json(&list);
    }
    if list.adapters.is_empty() {
        output::note(&format_args!("{} has no adapters", list.model));
        return Ok(());
    }
    let mut table =
        Table::new(&[("NAME", Align::Left), ("SIZE", Align::Right), ("SESSIONS", Align::Right)]);
    for adapter in list.adapters {
        let size = output::bytes(adapter.bytes);
        table.row(vec![adapter.name, size, adapter.sessions.to_string()]);
    }
    table.write(&mut output)
}

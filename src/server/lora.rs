//! The `lora.` methods: adapters come and go while their model stays on the device.

use std::path::PathBuf;

use serde_json::json;
use tokio::task::spawn_blocking;
use tracing::info;

use super::connection::Connection;
use super::methods::{ask, out_of_range};
use crate::config::Lora;
use crate::engine::{AdapterError, AdapterSource, EngineCommand};
use crate::protocol::{
    ErrorCode, ErrorObject, LoraEntry, LoraListResult, LoraLoadParams, LoraUnloadParams,
    LoraUnloadResult, ModelParams, RequestId,
};

pub(super) async fn load(
    connection: &Connection,
    request: &RequestId,
    params: LoraLoadParams,
) -> Result<LoraEntry, ErrorObject> {
    let LoraLoadParams { model, name, path } = params;
    connection.check_operator("lora.load")?;
    if !Lora::is_name(&name) {
        return Err(out_of_range("name", Lora::NAME_WANTED, format_args!("{name:?}")));
    }
    let path = PathBuf::from(path);
    if !path.is_absolute() {
        return Err(out_of_range("path", "an absolute path", path.display()));
    }
    let model = connection.model(request, model.as_deref()).await?;
    let base = ask(&model, connection.owner, |reply| EngineCommand::AdapterBase { reply }).await?;
    let source = AdapterSource { name, path };
    // It reads a file.
    let opened = spawn_blocking(move || base.open(source)).await;
    let opened = opened.map_err(|_| {
        ErrorObject::new(ErrorCode::INTERNAL, "the daemon failed; its log says more")
    })?;
    let adapter = opened
        .map_err(|error| ErrorObject::new(ErrorCode::ADAPTER_UNAVAILABLE, error.to_string()))?;
    let adapter = Box::new(adapter);
    let loaded =
        ask(&model, connection.owner, |reply| EngineCommand::LoadAdapter { adapter, reply })
            .await??;
    info!(uid = connection.owner.uid, model = model.name, name = loaded.name, "adapter loaded");
    Ok(loaded.into())
}

pub(super) async fn unload(
    connection: &Connection,
    request: &RequestId,
    params: LoraUnloadParams,
) -> Result<LoraUnloadResult, ErrorObject> {
    let LoraUnloadParams { model, name } = params;
    connection.check_operator("lora.unload")?;
    let model = connection.model_of_text(request, model.as_deref()).await?;
    let wanted = name.clone();
    ask(&model, connection.owner, |reply| EngineCommand::UnloadAdapter { name: wanted, reply })
        .await??;
    info!(uid = connection.owner.uid, model = model.name, name, "adapter unloaded");
    Ok(LoraUnloadResult { name })
}

pub(super) async fn list(
    connection: &Connection,
    request: &RequestId,
    params: ModelParams,
) -> Result<LoraListResult, ErrorObject> {
    let model = connection.model_of_text(request, params.model.as_deref()).await?;
    let adapters =
        ask(&model, connection.owner, |reply| EngineCommand::ListAdapters { reply }).await?;
    let adapters = adapters.into_iter().map(LoraEntry::from).collect();
    Ok(LoraListResult { model: model.name.clone(), adapters })
}

impl From<AdapterError> for ErrorObject {
    fn from(error: AdapterError) -> Self {
        let message = error.to_string();
        let (code, data) = match error {
            AdapterError::Exists(name) => (ErrorCode::ADAPTER_EXISTS, json!({"name": name})),
            AdapterError::Unknown { name, known } => (
                ErrorCode::INVALID_PARAMS,
                json!({"field": "name", "wanted": known, "found": name}),
            ),
            AdapterError::InUse { name, sessions } => {
                (ErrorCode::ADAPTER_BUSY, json!({"name": name, "sessions": sessions}))
            }
            AdapterError::TooMany | AdapterError::Failed(_) => {
                return Self::new(ErrorCode::ADAPTER_UNAVAILABLE, message);
            }
        };
        Self::new(code, message).with_data(data)
    }
}

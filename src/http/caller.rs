//! The models and the engine, as one user of the daemon sees them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::State;
use super::error::Failure;
use crate::engine::Owner;
use crate::protocol::{ErrorCode, ErrorObject};
use crate::server::{Host, InUse, Loader};

/// How long a request waits for its model to be loaded before its client is told to come again.
const LOAD_PATIENCE: Duration = Duration::from_secs(10);

/// How a request waits for a model that is not on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Loading {
    /// For a while; then 503 and `Retry-After`.
    #[default]
    Briefly,
    /// As long as it takes.
    Patiently,
}

/// Who asks, and what of the daemon there is to ask.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) owner: Owner,
    pub(super) host: Host,
    pub(super) state: Arc<State>,
}

impl Caller {
    /// The model of this name, or the default where it is empty or absent, on the device.
    pub(super) async fn model(
        &self,
        name: Option<&str>,
        loading: Loading,
    ) -> Result<InUse, Failure> {
        let host = self.host.clone();
        let name = named(name).map(str::to_owned);
        // A load goes on when its client is told to come again, or hangs up.
        let loader = Loader::of(self.owner);
        let load =
            tokio::spawn(async move { host.models().get(name.as_deref(), loader, |_| {}).await });
        let loaded = match loading {
            Loading::Patiently => load.await,
            Loading::Briefly => match timeout(LOAD_PATIENCE, load).await {
                Ok(loaded) => loaded,
                Err(_) => return Err(Failure::loading()),
            },
        };
        Ok(loaded.map_err(|_| Failure::internal())??)
    }

    /// The same for its tokenizer and its template alone: on the device or not.
    pub(super) async fn model_of_text(&self, name: Option<&str>) -> Result<InUse, Failure> {
        Ok(self.host.models().get_text(named(name), Loader::of(self.owner), |_| {}).await?)
    }

    /// Most bytes that may wait for a client of a stream.
    pub(super) fn waiting_bytes_max(&self) -> usize {
        self.host.options().outgoing_bytes_max
    }

    /// Cancelled once the daemon stops.
    pub(super) fn stopping(&self) -> &CancellationToken {
        self.host.stopping()
    }

    pub(super) fn shutting_down() -> ErrorObject {
        ErrorObject::new(ErrorCode::SHUTTING_DOWN, "the daemon is shutting down")
    }
}

fn named(name: Option<&str>) -> Option<&str> {
    name.filter(|name| !name.is_empty())
}

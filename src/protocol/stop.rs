//! What is told of the daemon's end.

use serde::{Deserialize, Serialize};

/// Result of `stop.report`: sessions that are in no file as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopReport {
    /// The sessions.
    pub not_saved: Vec<NotSaved>,
}

/// A session that was not saved, or not with its cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotSaved {
    /// Number.
    pub session: u64,
    /// Whose it is.
    pub uid: u32,
    /// Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its model.
    pub model: String,
    /// True if what it said is lost; else its cache alone is, which is computed again.
    pub lost: bool,
    /// Reason.
    pub reason: String,
}

//! Room for a model on the device: which others make way for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::info;

use super::super::methods::control;
use super::super::turns::Loader;
use super::{ModelSpec, Models, lock};
use crate::engine::Control;
use crate::protocol::{ErrorCode, ErrorObject};

/// Beside its weights a model takes this share of them, for its cache and its scratch memory.
const OVERHEAD_SHARE: u64 = 8;

/// A load that may take models off the device.
pub(super) struct Eviction {
    pub(super) caller: Loader,
    /// The caller's turn is taken: a load may need several models' room.
    pub(super) has_turn: bool,
}

fn not_your_turn(model: &str, wait: Duration) -> ErrorObject {
    let seconds = wait.as_secs() + 1;
    let message = format!(
        "the model {model:?} would take another user's off the device, as your last load did; try \
         again in {seconds} s"
    );
    ErrorObject::new(ErrorCode::MODEL_UNAVAILABLE, message)
}

impl Models {
    /// Unloads others until there are few enough, and until the device has room by its own account.
    pub(super) async fn make_room(
        &self,
        spec: &ModelSpec,
        eviction: &mut Eviction,
    ) -> Result<(), ErrorObject> {
        while self.loaded_count() >= self.0.loaded_max {
            if !self.evict(&spec.name, eviction).await? {
                let message = format!(
                    "there is no room for the model {:?}: {} are loaded, the most there may be, and \
                     all of them are in use or pinned",
                    spec.name, self.0.loaded_max
                );
                return Err(ErrorObject::new(ErrorCode::MODEL_UNAVAILABLE, message));
            }
        }
        let wanted = spec.bytes.saturating_add(spec.bytes / OVERHEAD_SHARE);
        while self.free_bytes().await.is_some_and(|free| free < wanted) {
            if !self.evict(&spec.name, eviction).await? {
                break; // the load will tell whether it is true
            }
        }
        Ok(())
    }

    fn loaded_count(&self) -> usize {
        self.slots().values().filter(|slot| slot.is_on_device()).count()
    }

    /// Free memory of the device, as a loaded model's engine sees it.
    async fn free_bytes(&self) -> Option<u64> {
        let engine = self.slots().values().find(|slot| slot.is_on_device())?.engine.clone();
        let status = control(&engine, |reply| Control::Status { reply }).await.ok()?;
        Some(status.device_budget_bytes.saturating_sub(status.device_bytes))
    }

    /// Unloads the model that was used longest ago, of those that nobody uses; true if one went.
    /// Those that only the caller has used go first.
    pub(super) async fn evict(
        &self,
        except: &str,
        eviction: &mut Eviction,
    ) -> Result<bool, ErrorObject> {
        let mut idle: Vec<(bool, Instant, String)> = self
            .slots()
            .values()
            .filter(|slot| slot.is_on_device() && !slot.spec.pinned && slot.spec.name != except)
            .filter(|slot| Arc::strong_count(&slot.users) == 1)
            .map(|slot| {
                let is_others = slot.is_others(eviction.caller);
                (is_others, slot.last_used, slot.spec.name.clone())
            })
            .collect();
        idle.sort();
        for (is_others, _, name) in idle {
            if is_others && !eviction.has_turn {
                let taken = lock(&self.0.turns).take(eviction.caller, Instant::now());
                taken.map_err(|wait| not_your_turn(except, wait))?;
                eviction.has_turn = true;
            }
            if self.take_off(&name).await {
                info!(model = name, "unloaded to make room");
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Unloads a model's engine from the device; true if it is off the device now.
    pub(super) async fn take_off(&self, name: &str) -> bool {
        let engine = match self.slots().get(name) {
            None => return true,
            Some(slot) if !slot.is_on_device() => return true,
            Some(slot) if Arc::strong_count(&slot.users) > 1 => return false,
            Some(slot) => slot.engine.clone(),
        };
        let is_off = control(&engine, |reply| Control::Unload { reply }).await.unwrap_or(false);
        if is_off && let Some(slot) = self.slots().get_mut(name) {
            slot.used_by.clear();
        }
        is_off
    }
}

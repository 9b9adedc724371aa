//! The pool of KV pages follows what the device's driver lets this process have.
//!
//! Where other programs take memory, the budget shrinks below what is in use. Caches of sessions at
//! rest then move out, as far as is needed, those of requests that wait after them, and the pool
//! gives its memory back. Requests that run keep what they have and will come to need. The pool
//! grows again once there has been room for a while.

use std::sync::{Arc, Mutex, TryLockError};

use super::room::Asker;
use super::types::AdmitError;
use super::worker::Worker;
use crate::config::MemoryReserve;
use crate::gpu::{DeviceError, MemoryReport};
use crate::kernels::PageLayout;
use crate::kv_cache::{KvConfig, KvLease};
use crate::scheduler::Priority;
use crate::session::SessionId;

/// The pool grows after so many looks in a row that found room: a budget that swings should not
/// have the pool follow each time.
const CALM_LOOKS: u32 = 5;

/// Least growth, as a share of the pool (1/8), unless it reaches its full size: each change costs
/// recordings and copies.
const GROWTH_SHARE: usize = 8;

/// No session: numbers begin at 1.
const NOBODY: SessionId = SessionId(0);

/// Memory budget of the KV pool.
#[derive(Debug)]
pub(super) struct Budget {
    reserve: MemoryReserve,
    /// The pool where there is memory enough.
    full: KvConfig,
    /// Looks in a row that found room to grow.
    calm: u32,
    turn: Arc<Mutex<()>>,
}

impl Budget {
    /// `turn`: held by whoever of this process looks.
    pub(super) fn new(reserve: MemoryReserve, full: &KvConfig, turn: Arc<Mutex<()>>) -> Self {
        Self { reserve, full: *full, calm: 0, turn }
    }

    pub(super) fn reserve(&self) -> MemoryReserve {
        self.reserve
    }

    /// Positions of the pool where there is memory enough.
    pub(super) fn tokens_full(&self) -> usize {
        self.full.tokens_max
    }
}

/// Bytes that may still be taken, beside the reserve.
pub(super) fn free_bytes(memory: MemoryReport, reserve: MemoryReserve) -> u64 {
    allowed_bytes(memory, reserve).saturating_sub(memory.used_bytes)
}

fn allowed_bytes(memory: MemoryReport, reserve: MemoryReserve) -> u64 {
    memory.budget_bytes.saturating_sub(reserve.bytes_of(memory.total_bytes))
}

/// As much of a pool as the memory that is left holds; at least a page.
pub(super) fn fit(full: &KvConfig, memory: MemoryReport, reserve: MemoryReserve) -> KvConfig {
    let pages = pages_of(free_bytes(memory, reserve), full).clamp(1, full.pages());
    let tokens_max = full.tokens_max.min(pages * PageLayout::TOKENS as usize);
    KvConfig { tokens_max, ..*full }
}

fn pages_of(bytes: u64, config: &KvConfig) -> usize {
    usize::try_from(bytes / config.page_bytes()).unwrap_or(usize::MAX)
}

impl Worker {
    /// Looks at the device's memory, and makes the pool smaller or larger where that is due.
    pub(super) fn follow_budget(&mut self) -> Result<(), DeviceError> {
        if !self.runner.is_on_device() {
            return Ok(());
        }
        let turn = Arc::clone(&self.budget.turn);
        let _turn = match turn.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(()), // another engine's turn
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Ok(turn) => turn,
        };
        let memory = self.runner.executor().memory();
        let allowed = allowed_bytes(memory, self.budget.reserve);
        let config = *self.runner.kv().config();
        if memory.used_bytes > allowed {
            self.budget.calm = 0;
            let over = (memory.used_bytes - allowed).div_ceil(config.page_bytes());
            let over = usize::try_from(over).unwrap_or(usize::MAX);
            return self.shrink_pool(config.pages().saturating_sub(over).max(1));
        }
        let full = self.budget.full.pages();
        let room = pages_of(allowed - memory.used_bytes, &config);
        let wanted = config.pages().saturating_add(room).min(full);
        let growth = wanted.saturating_sub(config.pages());
        let worthwhile = growth > 0 && (wanted == full || growth >= full / GROWTH_SHARE);
        self.budget.calm = if worthwhile { self.budget.calm + 1 } else { 0 };
        if self.budget.calm < CALM_LOOKS {
            return Ok(());
        }
        self.budget.calm = 0;
        tracing::info!(pages = wanted, "the device has room again: the KV cache grows");
        self.resize_pool(wanted)
    }

    /// Moves caches out until `pages` pages are enough, and gives the rest back to the device, but
    /// for what requests that run need.
    fn shrink_pool(&mut self, pages: usize) -> Result<(), DeviceError> {
        // Those that wait give way; nobody is less urgent than this.
        let asker = Asker::Waiting(Priority::Background);
        while self.pages_kept() > pages && self.make_way(asker, NOBODY)? {}
        let (before, pages) = (self.runner.kv().config().pages(), pages.max(self.pages_kept()));
        if pages >= before {
            return Ok(());
        }
        tracing::warn!(before, pages, "the device is short of memory: the KV cache shrinks");
        self.resize_pool(pages)
    }

    /// Pages that are leased, and those that running requests will come to need.
    fn pages_kept(&self) -> usize {
        let kv = self.runner.kv();
        let leased = kv.config().pages() - kv.pages_available();
        let promised: usize = self
            .running
            .iter()
            .map(|running| {
                let wanted = running.tokens_wanted();
                self.pages_missing(
                    running.session,
                    self.sessions.get(running.session).tokens.len(),
                    wanted,
                )
            })
            .sum();
        (leased + promised).min(kv.config().pages())
    }

    fn resize_pool(&mut self, pages: usize) -> Result<(), DeviceError> {
        let mut leases: Vec<&mut KvLease> = self.sessions.leases_mut().collect();
        self.runner.resize_kv(pages, &mut leases)
    }

    /// Refuses a request that does not fit the pool as it is now, where it once did.
    pub(super) fn check_memory(&self, wanted_tokens: usize) -> Result<(), AdmitError> {
        if !self.runner.is_on_device() {
            return Ok(()); // it is loaded for the request
        }
        let tokens_max = self.runner.kv().config().tokens_max;
        if wanted_tokens > tokens_max && tokens_max < self.budget.full.tokens_max {
            return Err(AdmitError::MemoryShort { wanted_tokens, tokens_max });
        }
        Ok(())
    }
}

//! The KV cache: a pool of pages on the device, leased to sessions.
//!
//! A page holds [`PageLayout::TOKENS`](crate::kernels::PageLayout::TOKENS) positions of every layer
//! and has one owner, the [`KvLease`] that holds it; leases can be moved, not copied. Only a fork
//! shares its pages, with the lease it was made from: whoever of the two writes first gets a copy.
//! A page is zeroed on the device before it is leased for the first time, and again when its last
//! owner has given it back, so no session ever reads what another left. Attention reads through the
//! lease's own row of the block tables.

mod config;
mod pool;
mod resize;
#[cfg(test)]
mod tests;
mod transfer;

pub use config::KvConfig;
pub use pool::PageId;

use std::time::Duration;

use thiserror::Error;

use crate::gpu::{
    BufferDesc, BufferHandle, BufferSlice, BufferUsage, DeviceError, Executor, Recording,
};
use crate::kernels::PageLayout;
use pool::PagePool;

/// Zeroing and copying pages takes far less.
const PAGES_TIMEOUT: Duration = Duration::from_secs(60);

/// Fresh pages that are zeroed at once, so that a session does not stop for each.
const FRESH_PAGES: usize = 16;

/// The pages of one session, in the order of their positions, and its row of the block tables.
///
/// Must be given back with [`KvCache::release`]; dropping it keeps its pages out of the pool.
#[derive(Debug)]
#[must_use = "a lease that is not released keeps its pages"]
pub struct KvLease {
    pages: Vec<PageId>,
    table: u32,
}

impl KvLease {
    /// Row of the block tables.
    #[must_use]
    pub fn table(&self) -> u32 {
        self.table
    }

    /// Positions the leased pages hold.
    #[must_use]
    pub fn tokens_max(&self) -> usize {
        self.pages.len() * PageLayout::TOKENS as usize
    }

    /// Pages, in the order of their positions.
    #[must_use]
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }
}

/// Reason a lease cannot be created or grown.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum LeaseError {
    /// Every row of the block tables is taken.
    #[error("all {limit} block tables are in use")]
    NoTable {
        /// Rows there are.
        limit: usize,
    },
    /// Not enough pages are free.
    #[error("{wanted_pages} KV pages wanted, {free_pages} are free")]
    NoPages {
        /// Number of pages requested.
        wanted_pages: usize,
        /// Number of free pages.
        free_pages: usize,
    },
}

/// Pool of KV pages, with the block tables of all leases.
#[derive(Debug)]
pub struct KvCache {
    config: KvConfig,
    layers: Vec<BufferHandle>,
    tables: BufferHandle,
    pool: PagePool,
    free_tables: Vec<u32>,
}

impl KvCache {
    /// Creates the pool's buffers. Their pages are zeroed as they are leased: zeroing all of them
    /// would cost a start more than a model's weights do on a driver that then has to find memory.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] if the device has no room for it.
    pub fn new(executor: &mut dyn Executor, config: KvConfig) -> Result<Self, DeviceError> {
        let layer_bytes = config.pages() as u64 * config.layout.page_bytes();
        let mut layers = Vec::with_capacity(config.layers);
        for layer in 0..config.layers {
            let desc = BufferDesc {
                label: format!("kv.{layer}"),
                bytes: layer_bytes,
                usage: BufferUsage::Kv,
            };
            match executor.create_buffer(&desc) {
                Ok(buffer) => layers.push(buffer),
                Err(error) => {
                    layers.into_iter().for_each(|buffer| executor.destroy_buffer(buffer));
                    return Err(error);
                }
            }
        }
        let tables = executor.create_buffer(&BufferDesc {
            label: "block tables".into(),
            bytes: (config.leases_max * config.table_stride() * 4) as u64,
            usage: BufferUsage::Upload,
        })?;
        let pages = u32::try_from(config.pages()).expect("pages_max is checked against a binding");
        let leases = u32::try_from(config.leases_max).expect("a small number");
        Ok(Self {
            config,
            layers,
            tables,
            pool: PagePool::new(pages),
            free_tables: (0..leases).rev().collect(),
        })
    }

    /// Sizes of the pool.
    #[must_use]
    pub fn config(&self) -> &KvConfig {
        &self.config
    }

    /// The pages of a layer.
    #[must_use]
    pub fn layer(&self, layer: usize) -> BufferSlice {
        let bytes = self.config.pages() as u64 * self.config.layout.page_bytes();
        BufferSlice { buffer: self.layers[layer], offset: 0, bytes }
    }

    /// The block tables: u32 `[leases_max, table_stride]`.
    #[must_use]
    pub fn tables(&self) -> BufferSlice {
        let bytes = (self.config.leases_max * self.config.table_stride() * 4) as u64;
        BufferSlice { buffer: self.tables, offset: 0, bytes }
    }

    /// Pages that can still be leased.
    #[must_use]
    pub fn pages_available(&self) -> usize {
        self.pool.free_pages()
    }

    /// Positions that can still be leased.
    #[must_use]
    pub fn tokens_free(&self) -> usize {
        self.pages_available() * PageLayout::TOKENS as usize
    }

    /// Pages that nobody has left anything in.
    #[must_use]
    pub fn pages_free(&self) -> usize {
        self.pool.clean_pages() + self.pool.fresh_pages()
    }

    /// Pages given back and not zeroed yet.
    #[must_use]
    pub fn pages_soiled(&self) -> usize {
        self.pool.soiled().len()
    }

    /// Takes a row of the block tables, without pages yet.
    ///
    /// # Errors
    /// [`LeaseError::NoTable`].
    pub fn lease(&mut self) -> Result<KvLease, LeaseError> {
        let limit = self.config.leases_max;
        let table = self.free_tables.pop().ok_or(LeaseError::NoTable { limit })?;
        Ok(KvLease { pages: Vec::new(), table })
    }

    /// Pages that [`KvCache::grow`] would take from the pool.
    #[must_use]
    pub fn pages_wanted(&self, lease: &KvLease, used: usize, tokens: usize) -> usize {
        let kept = self.pages_kept(lease, used);
        tokens.div_ceil(PageLayout::TOKENS as usize).saturating_sub(kept)
    }

    /// Pages of the lease that are its own from position `used` on: all up to the first shared one
    /// that would be written.
    fn pages_kept(&self, lease: &KvLease, used: usize) -> usize {
        let first = used / PageLayout::TOKENS as usize;
        let shared = lease.pages.iter().skip(first).position(|page| self.pool.is_shared(*page));
        shared.map_or(lease.pages.len(), |at| first + at)
    }

    /// Makes the lease hold `tokens` positions, all from `used` on its own to write, and tells its
    /// block table. A page that is shared with a fork and holds positions before `used` is copied;
    /// shared ones behind it are exchanged for clean ones. Nothing changes on an error.
    ///
    /// # Errors
    /// [`LeaseError::NoPages`]; a failed device call as the outer error.
    pub fn grow(
        &mut self,
        executor: &mut dyn Executor,
        lease: &mut KvLease,
        used: usize,
        tokens: usize,
    ) -> Result<Result<(), LeaseError>, DeviceError> {
        let pages = tokens.div_ceil(PageLayout::TOKENS as usize);
        assert!(pages <= self.config.table_stride(), "the caller keeps to the context");
        let wanted = self.pages_wanted(lease, used, tokens);
        if wanted == 0 {
            return Ok(Ok(()));
        }
        if wanted > self.pool.clean_pages() {
            let missing = wanted - self.pool.clean_pages();
            let fresh = missing.saturating_sub(self.pool.soiled().len());
            if fresh > 0 && wanted <= self.pool.free_pages() {
                self.pool.break_in(fresh.max(FRESH_PAGES));
            }
            self.clean(executor)?;
        }
        let Some(taken) = self.pool.take(wanted) else {
            let free_pages = self.pool.free_pages();
            return Ok(Err(LeaseError::NoPages { wanted_pages: wanted, free_pages }));
        };
        let first = self.pages_kept(lease, used);
        let partly_used = first * (PageLayout::TOKENS as usize) < used;
        if let Some(from) = lease.pages.get(first).copied().filter(|_| partly_used)
            && let Err(error) = self.copy_page(executor, from, taken[0])
        {
            taken.into_iter().for_each(|page| self.pool.give_back(page));
            return Err(error);
        }
        for page in lease.pages.drain(first..) {
            self.pool.give_back(page);
        }
        lease.pages.extend(taken);
        self.write_table(executor, lease, first)?;
        Ok(Ok(()))
    }

    /// A second lease of the first `tokens` positions, sharing their pages.
    ///
    /// # Errors
    /// [`LeaseError::NoTable`]; a failed device call as the outer error.
    ///
    /// # Panics
    /// If the lease holds fewer positions: a bug of the caller.
    pub fn fork(
        &mut self,
        executor: &mut dyn Executor,
        lease: &KvLease,
        tokens: usize,
    ) -> Result<Result<KvLease, LeaseError>, DeviceError> {
        assert!(tokens <= lease.tokens_max(), "a fork begins within its origin");
        let mut fork = match self.lease() {
            Ok(fork) => fork,
            Err(error) => return Ok(Err(error)),
        };
        fork.pages.extend(&lease.pages[..tokens.div_ceil(PageLayout::TOKENS as usize)]);
        fork.pages.iter().for_each(|page| self.pool.share(*page));
        match self.write_table(executor, &fork, 0) {
            Ok(()) => Ok(Ok(fork)),
            Err(error) => {
                self.release(fork);
                Err(error)
            }
        }
    }

    /// True if any page of the lease has another owner.
    #[must_use]
    pub fn shares_pages(&self, lease: &KvLease) -> bool {
        lease.pages.iter().any(|page| self.pool.is_shared(*page))
    }

    /// Gives back the pages past the first `tokens` positions.
    pub fn shrink(&mut self, lease: &mut KvLease, tokens: usize) {
        let pages = tokens.div_ceil(PageLayout::TOKENS as usize);
        if pages < lease.pages.len() {
            lease.pages.drain(pages..).for_each(|page| self.pool.give_back(page));
        }
    }

    /// Gives back the whole lease.
    pub fn release(&mut self, lease: KvLease) {
        lease.pages.into_iter().for_each(|page| self.pool.give_back(page));
        self.free_tables.push(lease.table);
    }

    /// Zeroes the pages given back; only then can they be leased again.
    ///
    /// # Errors
    /// The failed device call; the pages then stay out of the pool.
    pub fn clean(&mut self, executor: &mut dyn Executor) -> Result<(), DeviceError> {
        if self.pool.soiled().is_empty() {
            return Ok(());
        }
        let mut pages = self.pool.soiled().to_vec();
        pages.sort_unstable();
        let runs = transfer::runs(&pages);
        let mut recording = Recording::new();
        for layer in 0..self.layers.len() {
            for (first, count) in &runs {
                let page = self.page(layer, PageId(*first));
                recording.zero(BufferSlice { bytes: page.bytes * *count as u64, ..page });
            }
        }
        run(executor, &recording)?;
        self.pool.cleaned();
        Ok(())
    }

    /// One page of one layer.
    fn page(&self, layer: usize, page: PageId) -> BufferSlice {
        let bytes = self.config.layout.page_bytes();
        BufferSlice { buffer: self.layers[layer], offset: u64::from(page.0) * bytes, bytes }
    }

    fn copy_page(
        &self,
        executor: &mut dyn Executor,
        from: PageId,
        to: PageId,
    ) -> Result<(), DeviceError> {
        let mut recording = Recording::new();
        for layer in 0..self.layers.len() {
            recording.copy(self.page(layer, from), self.page(layer, to));
        }
        run(executor, &recording)
    }

    /// Writes the lease's pages from number `first` on into its block table.
    fn write_table(
        &self,
        executor: &mut dyn Executor,
        lease: &KvLease,
        first: usize,
    ) -> Result<(), DeviceError> {
        let numbers: Vec<u32> = lease.pages[first..].iter().map(|page| page.0).collect();
        if numbers.is_empty() {
            return Ok(());
        }
        let offset = (lease.table as usize * self.config.table_stride() + first) * 4;
        executor.write(self.tables, offset as u64, numbers.len() * 4, &mut |out| {
            out.copy_from_slice(bytemuck::cast_slice(&numbers));
        })
    }
}

/// Runs commands once and waits for them.
fn run(executor: &mut dyn Executor, recording: &Recording) -> Result<(), DeviceError> {
    let prepared = executor.prepare(recording)?;
    let result = executor.submit(prepared).and_then(|ticket| executor.wait(ticket, PAGES_TIMEOUT));
    executor.release(prepared);
    result
}

//! The KV cache: a pool of pages on the device, leased to sessions.
//!
//! A page holds [`PageLayout::TOKENS`] positions of every layer and has one owner, the [`KvLease`]
//! that holds it; leases can be moved, not copied. A page given back is zeroed on the device before
//! it can be leased again, so no session ever reads what another left. Attention reads through the
//! lease's own row of the block tables.

use thiserror::Error;

use crate::gpu::{
    BufferDesc, BufferHandle, BufferSlice, BufferUsage, Capabilities, DeviceError, Executor,
    Recording,
};
use crate::kernels::PageLayout;

/// A page's number in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(u32);

impl PageId {
    /// The number, as block tables hold it.
    #[must_use]
    pub fn index(self) -> u32 {
        self.0
    }
}

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

    /// Its pages, in the order of their positions.
    #[must_use]
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }
}

/// Why a lease cannot be had or grown.
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
        /// Pages wanted.
        wanted_pages: usize,
        /// Pages free.
        free_pages: usize,
    },
}

/// Sizes of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvConfig {
    /// Pages of one layer.
    pub layout: PageLayout,
    /// Layers.
    pub layers: usize,
    /// Positions of the longest session.
    pub context_tokens: usize,
    /// Positions of all sessions.
    pub tokens_max: usize,
    /// Leases there may be at once.
    pub leases_max: usize,
}

impl KvConfig {
    /// Pages of the longest session.
    #[must_use]
    pub fn table_stride(&self) -> usize {
        self.context_tokens.div_ceil(PageLayout::TOKENS as usize)
    }

    /// Pages in all.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.tokens_max.div_ceil(PageLayout::TOKENS as usize)
    }

    /// Bytes of all layers.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.pages() as u64 * self.layout.page_bytes() * self.layers as u64
    }

    /// Bytes of one position in all layers.
    #[must_use]
    pub fn token_bytes(&self) -> u64 {
        self.layout.page_bytes() / u64::from(PageLayout::TOKENS) * self.layers as u64
    }

    /// Most positions whose pages of one layer can still be bound.
    #[must_use]
    pub fn tokens_bindable(layout: &PageLayout, caps: &Capabilities) -> usize {
        let bytes = caps.storage_range_max.min(caps.allocation_bytes_max);
        usize::try_from(bytes / layout.page_bytes())
            .unwrap_or(usize::MAX)
            .saturating_mul(PageLayout::TOKENS as usize)
    }
}

/// The pool.
#[derive(Debug)]
pub struct KvCache {
    config: KvConfig,
    layers: Vec<BufferHandle>,
    tables: BufferHandle,
    free_pages: Vec<PageId>,
    free_tables: Vec<u32>,
    /// Pages given back and not yet zeroed.
    soiled: Vec<PageId>,
}

impl KvCache {
    /// Creates the pool's buffers, zeroed.
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
            // Taken from the end: page 0 goes first.
            free_pages: (0..pages).rev().map(PageId).collect(),
            free_tables: (0..leases).rev().collect(),
            soiled: Vec::new(),
        })
    }

    /// Sizes.
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

    /// Positions that can still be leased.
    #[must_use]
    pub fn tokens_free(&self) -> usize {
        (self.free_pages.len() + self.soiled.len()) * PageLayout::TOKENS as usize
    }

    /// Pages that are zeroed and ready.
    #[must_use]
    pub fn pages_free(&self) -> usize {
        self.free_pages.len()
    }

    /// Pages given back and not zeroed yet.
    #[must_use]
    pub fn pages_soiled(&self) -> usize {
        self.soiled.len()
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

    /// Adds pages until the lease holds `tokens` positions, and writes them into its block table.
    /// Nothing changes on an error.
    ///
    /// # Errors
    /// [`LeaseError::NoPages`]; a failed device call as the inner error.
    pub fn grow(
        &mut self,
        executor: &mut dyn Executor,
        lease: &mut KvLease,
        tokens: usize,
    ) -> Result<Result<(), LeaseError>, DeviceError> {
        let pages = tokens.div_ceil(PageLayout::TOKENS as usize);
        assert!(pages <= self.config.table_stride(), "the caller keeps to the context");
        let Some(wanted) = pages.checked_sub(lease.pages.len()).filter(|wanted| *wanted > 0) else {
            return Ok(Ok(()));
        };
        if wanted > self.free_pages.len() {
            self.clean(executor)?;
        }
        if wanted > self.free_pages.len() {
            let free_pages = self.free_pages.len();
            return Ok(Err(LeaseError::NoPages { wanted_pages: wanted, free_pages }));
        }
        let first = lease.pages.len();
        let taken = self.free_pages.split_off(self.free_pages.len() - wanted);
        lease.pages.extend(taken.into_iter().rev());
        let offset = (lease.table as usize * self.config.table_stride() + first) * 4;
        let numbers: Vec<u32> = lease.pages[first..].iter().map(|page| page.0).collect();
        executor.write(self.tables, offset as u64, numbers.len() * 4, &mut |out| {
            out.copy_from_slice(bytemuck::cast_slice(&numbers));
        })?;
        Ok(Ok(()))
    }

    /// Gives back the pages past the first `tokens` positions.
    pub fn shrink(&mut self, lease: &mut KvLease, tokens: usize) {
        let pages = tokens.div_ceil(PageLayout::TOKENS as usize);
        if pages < lease.pages.len() {
            self.soiled.extend(lease.pages.drain(pages..));
        }
    }

    /// Gives back the whole lease.
    pub fn release(&mut self, lease: KvLease) {
        self.soiled.extend(lease.pages);
        self.free_tables.push(lease.table);
    }

    /// Zeroes the pages given back; only then can they be leased again.
    ///
    /// # Errors
    /// The failed device call; the pages then stay out of the pool.
    pub fn clean(&mut self, executor: &mut dyn Executor) -> Result<(), DeviceError> {
        if self.soiled.is_empty() {
            return Ok(());
        }
        let page_bytes = self.config.layout.page_bytes();
        let mut recording = Recording::new();
        for buffer in &self.layers {
            for page in &self.soiled {
                let offset = u64::from(page.0) * page_bytes;
                recording.zero(BufferSlice { buffer: *buffer, offset, bytes: page_bytes });
            }
        }
        let prepared = executor.prepare(&recording)?;
        let result = executor
            .submit(prepared)
            .and_then(|ticket| executor.wait(ticket, std::time::Duration::from_secs(60)));
        executor.release(prepared);
        result?;
        self.free_pages.append(&mut self.soiled);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::ReferenceExecutor;

    fn cache(executor: &mut ReferenceExecutor) -> KvCache {
        let layout = PageLayout { kv_heads: 1, head_dim: 32, half: true };
        let config =
            KvConfig { layout, layers: 2, context_tokens: 96, tokens_max: 128, leases_max: 3 };
        KvCache::new(executor, config).expect("memory")
    }

    #[test]
    fn released_pages_are_zeroed_before_they_are_leased_again() {
        let mut executor = ReferenceExecutor::new();
        let mut cache = cache(&mut executor);
        let mut lease = cache.lease().expect("a table");
        cache.grow(&mut executor, &mut lease, 96).expect("device").expect("pages");
        for layer in 0..2 {
            let slice = cache.layer(layer);
            executor
                .write(slice.buffer, 0, slice.bytes as usize, &mut |out| out.fill(0xa5))
                .expect("write");
        }
        let soiled: Vec<u32> = lease.pages().iter().map(|page| page.index()).collect();
        cache.release(lease);
        let mut next = cache.lease().expect("a table");
        cache.grow(&mut executor, &mut next, 96).expect("device").expect("pages");
        let page_bytes = cache.config().layout.page_bytes() as usize;
        for page in next.pages().iter().filter(|page| soiled.contains(&page.index())) {
            for layer in 0..2 {
                let mut bytes = vec![1; page_bytes];
                let offset = page.index() as usize * page_bytes;
                executor.read(cache.layer(layer).buffer, offset as u64, &mut bytes).expect("read");
                assert!(bytes.iter().all(|byte| *byte == 0), "page {page:?} layer {layer}");
            }
        }
        cache.release(next);
    }

    #[test]
    fn pages_have_one_owner_and_a_full_pool_says_so() {
        let mut executor = ReferenceExecutor::new();
        let mut cache = cache(&mut executor);
        let (mut a, mut b) = (cache.lease().expect("table"), cache.lease().expect("table"));
        cache.grow(&mut executor, &mut a, 70).expect("device").expect("three pages");
        cache.grow(&mut executor, &mut b, 32).expect("device").expect("one page");
        let refused = cache.grow(&mut executor, &mut b, 33).expect("device");
        assert_eq!(refused, Err(LeaseError::NoPages { wanted_pages: 1, free_pages: 0 }));
        assert!(a.pages().iter().all(|page| !b.pages().contains(page)));
        cache.shrink(&mut a, 64);
        cache.grow(&mut executor, &mut b, 33).expect("device").expect("the page given back");
        assert_eq!(cache.tokens_free(), 0);
        cache.release(a);
        cache.release(b);
        assert_eq!(cache.tokens_free(), 128);
    }
}

//! A pool that changes its size: its buffers are made anew, and what is leased moves with it.
//!
//! One layer after the other goes through the host's memory, so that the device never has to hold
//! more than it did before.

use super::pool::PageId;
use super::{KvCache, KvLease};
use crate::gpu::{BufferDesc, BufferUsage, DeviceError, Executor};
use crate::kernels::PageLayout;

impl KvCache {
    /// Makes the pool one of `pages` pages. `leases` are all there are; their pages may get other
    /// numbers. Recordings that were prepared over the pool are gone then.
    ///
    /// # Errors
    /// The failed device call; the cache is then of no use.
    ///
    /// # Panics
    /// If there are no pages, or more of them leased: a bug of the caller.
    pub fn resize(
        &mut self,
        executor: &mut dyn Executor,
        pages: usize,
        leases: &mut [&mut KvLease],
    ) -> Result<(), DeviceError> {
        assert!(pages > 0, "a pool has a page");
        let moves = self.pool.resize(pages);
        for layer in 0..self.layers.len() {
            self.resize_layer(executor, layer, pages, &moves)?;
        }
        self.config.tokens_max = pages * PageLayout::TOKENS as usize;
        for lease in leases {
            for page in &mut lease.pages {
                let at = moves.binary_search_by_key(page, |(from, _)| *from);
                *page = moves[at.expect("what is leased has an owner")].1;
            }
            self.write_table(executor, lease, 0)?;
        }
        Ok(())
    }

    fn resize_layer(
        &mut self,
        executor: &mut dyn Executor,
        layer: usize,
        pages: usize,
        moves: &[(PageId, PageId)],
    ) -> Result<(), DeviceError> {
        let page_bytes = self.config.layout.page_bytes() as usize;
        let offset = |page: PageId| u64::from(page.0) * page_bytes as u64;
        let mut kept = vec![0; moves.len() * page_bytes];
        for ((from, _), out) in moves.iter().zip(kept.chunks_exact_mut(page_bytes)) {
            executor.read(self.layers[layer], offset(*from), out)?;
        }
        let desc = BufferDesc {
            label: format!("kv.{layer}"),
            bytes: (pages * page_bytes) as u64,
            usage: BufferUsage::Kv,
        };
        let buffer = executor.replace_buffer(self.layers[layer], &desc)?;
        self.layers[layer] = buffer;
        for ((_, to), bytes) in moves.iter().zip(kept.chunks_exact(page_bytes)) {
            executor.write(buffer, offset(*to), page_bytes, &mut |out| {
                out.copy_from_slice(bytes);
            })?;
        }
        Ok(())
    }
}

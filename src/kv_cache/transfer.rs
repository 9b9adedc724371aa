//! Pages to the host and back: the bytes of a lease's positions, for moving a session's cache out
//! of the device's memory and into it again.
//!
//! ```text
//! [layers][pages] pages of PageLayout::page_bytes bytes, keys in quads
//! ```
//!
//! That is one form for all devices: what one has computed, another goes on with.

use super::{KvCache, KvLease, PageId};
use crate::gpu::{DeviceError, Executor};
use crate::kernels::PageLayout;

impl KvCache {
    /// The pages that hold the first `tokens` positions.
    ///
    /// # Errors
    /// The failed device call.
    ///
    /// # Panics
    /// If the lease holds fewer positions: a bug of the caller.
    pub fn read_pages(
        &self,
        executor: &mut dyn Executor,
        lease: &KvLease,
        tokens: usize,
    ) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = vec![0; self.config.bytes_of(tokens)];
        let page_bytes = self.config.layout.page_bytes() as usize;
        let runs = runs(&lease.pages[..tokens.div_ceil(PageLayout::TOKENS as usize)]);
        let mut rest = bytes.as_mut_slice();
        for layer in &self.layers {
            for (first, pages) in &runs {
                let (out, behind) = rest.split_at_mut(pages * page_bytes);
                executor.read(*layer, u64::from(*first) * page_bytes as u64, out)?;
                rest = behind;
            }
        }
        self.config.layout.keys_to_quads(&mut bytes);
        Ok(bytes)
    }

    /// Fills the pages of the first `tokens` positions, which are the lease's own, with what
    /// [`KvCache::read_pages`] returned for at least as many.
    ///
    /// # Errors
    /// The failed device call; the positions are then undefined.
    ///
    /// # Panics
    /// If the bytes or the lease hold fewer positions: a bug of the caller.
    pub fn write_pages(
        &self,
        executor: &mut dyn Executor,
        lease: &KvLease,
        tokens: usize,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        assert!(!self.shares_pages(lease), "shared pages are never written");
        if tokens == 0 {
            return Ok(());
        }
        let page_bytes = self.config.layout.page_bytes() as usize;
        let runs = runs(&lease.pages[..tokens.div_ceil(PageLayout::TOKENS as usize)]);
        for (layer, bytes) in
            self.layers.iter().zip(bytes.chunks_exact(bytes.len() / self.layers.len()))
        {
            let mut at = 0;
            for (first, pages) in &runs {
                let mut piece = bytes[at..at + pages * page_bytes].to_vec();
                self.config.layout.keys_from_quads(&mut piece);
                let offset = u64::from(*first) * page_bytes as u64;
                executor
                    .write(*layer, offset, piece.len(), &mut |out| out.copy_from_slice(&piece))?;
                at += piece.len();
            }
        }
        Ok(())
    }
}

/// The lease's first `pages` pages as runs of neighbours: first page and count.
pub(super) fn runs(pages: &[PageId]) -> Vec<(u32, usize)> {
    let mut runs: Vec<(u32, usize)> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some((first, count)) if *first + *count as u32 == page.0 => *count += 1,
            _ => runs.push((page.0, 1)),
        }
    }
    runs
}

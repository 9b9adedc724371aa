//! Sizes of a cache.

use crate::gpu::Capabilities;
use crate::kernels::PageLayout;

/// Sizes of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvConfig {
    /// Pages of one layer.
    pub layout: PageLayout,
    /// Number of layers.
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
        self.pages() as u64 * self.page_bytes()
    }

    /// Bytes of one page in all layers.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.layout.page_bytes() * self.layers as u64
    }

    /// Bytes of one position in all layers.
    #[must_use]
    pub fn token_bytes(&self) -> u64 {
        self.page_bytes() / u64::from(PageLayout::TOKENS)
    }

    /// Bytes of the pages for `tokens` positions, in all layers.
    #[must_use]
    pub fn bytes_of(&self, tokens: usize) -> usize {
        tokens.div_ceil(PageLayout::TOKENS as usize) * self.page_bytes() as usize
    }

    /// The first `tokens` positions of what [`KvCache::read_pages`](super::KvCache::read_pages)
    /// returned for at least as many.
    #[must_use]
    pub fn first_pages(&self, bytes: &[u8], tokens: usize) -> Vec<u8> {
        let wanted = self.bytes_of(tokens) / self.layers;
        let layers = bytes.chunks_exact((bytes.len() / self.layers).max(1));
        layers.flat_map(|layer| &layer[..wanted]).copied().collect()
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

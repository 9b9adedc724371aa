//! One step's tokens, as pure data.

/// Neighbouring tokens of one session in a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSpan {
    /// Row of the block tables: the session's pages.
    pub table: u32,
    /// Position of the first token.
    pub position: u32,
    /// The tokens, at least one.
    pub tokens: Vec<u32>,
    /// Number of last tokens whose logits are requested.
    pub logits: usize,
}

/// The spans of a step, at most one of each session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// In the order of their rows.
    pub spans: Vec<TokenSpan>,
}

impl Batch {
    /// Tokens in all.
    #[must_use]
    pub fn token_count(&self) -> usize {
        self.spans.iter().map(|span| span.tokens.len()).sum()
    }

    /// Logit rows in all.
    #[must_use]
    pub fn logit_count(&self) -> usize {
        self.spans.iter().map(|span| span.logits).sum()
    }

    /// u32 `[tokens, 4]`: token id, position, row of the block tables, 0.
    #[must_use]
    pub fn steps(&self) -> Vec<[u32; 4]> {
        let of = |span: &TokenSpan| {
            let (first, table) = (span.position, span.table);
            (first..).zip(span.tokens.clone()).map(move |(position, id)| [id, position, table, 0])
        };
        self.spans.iter().flat_map(of).collect()
    }

    /// u32 `[tiles, 4]`: first token, tokens, keys of the session, 0; no tile has more than
    /// `tile_tokens` tokens or the tokens of two sessions.
    #[must_use]
    pub fn tiles(&self, tile_tokens: u32) -> Vec<[u32; 4]> {
        let mut tiles = Vec::new();
        let mut first = 0;
        for span in &self.spans {
            let end = first + span.tokens.len() as u32;
            let keys = span.position + span.tokens.len() as u32;
            while first < end {
                let count = tile_tokens.min(end - first);
                tiles.push([first, count, keys, 0]);
                first += count;
            }
        }
        tiles
    }

    /// Rows of the tokens whose logits are wanted, in order.
    #[must_use]
    pub fn logit_rows(&self) -> Vec<u32> {
        let mut rows = Vec::with_capacity(self.logit_count());
        let mut end = 0;
        for span in &self.spans {
            end += span.tokens.len() as u32;
            rows.extend(end - span.logits as u32..end);
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_follow_the_spans() {
        let span = |table, position, tokens: &[u32], logits| TokenSpan {
            table,
            position,
            tokens: tokens.to_vec(),
            logits,
        };
        let batch = Batch { spans: vec![span(3, 7, &[50, 51, 52], 0), span(1, 0, &[9, 8], 2)] };
        assert_eq!(batch.steps()[2], [52, 9, 3, 0]);
        assert_eq!(batch.steps()[3], [9, 0, 1, 0]);
        assert_eq!(batch.tiles(2), [[0, 2, 10, 0], [2, 1, 10, 0], [3, 2, 2, 0]]);
        assert_eq!(batch.logit_rows(), [3, 4]);
        assert_eq!((batch.token_count(), batch.logit_count()), (5, 2));
    }
}

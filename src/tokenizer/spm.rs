//! SentencePiece's BPE: of all pairs that make a token, the one that scores highest merges first.

use super::encode::SPM_SPACE;
use super::merge::{Merge, Merger, NO_TOKEN, key_of_score};
use super::meter::Meter;
use super::vocab::Vocab;
use super::{TokenizerError, VocabSource};

#[derive(Debug)]
pub(super) struct Spm {
    /// Merge key of each token.
    keys: Vec<u32>,
    /// The token that writes each byte where no token has the character, or [`NO_TOKEN`].
    byte_ids: [u32; 256],
    pub(super) add_space_prefix: bool,
    /// Text that begins with a space is given no other one.
    spares_space: bool,
    /// The space is put before the whole text alone.
    first_alone: bool,
}

impl Spm {
    pub(super) fn new(vocab: &Vocab, source: &VocabSource) -> Self {
        let keys = (0..vocab.len())
            .map(|id| key_of_score(source.scores.get(id).copied().unwrap_or(0.0)))
            .collect();
        let unknown = source.unk.or((vocab.len() > 0).then_some(0));
        let byte_ids = std::array::from_fn(|byte| {
            let byte = byte as u8;
            vocab
                .id(format!("<0x{byte:02X}>").as_bytes())
                .or_else(|| vocab.id(&[byte]))
                .or(unknown)
                .unwrap_or(NO_TOKEN)
        });
        let add_space_prefix = source.add_space_prefix.unwrap_or(true);
        let spares_space = source.space_prefix.is_some();
        let first_alone = source.space_prefix.as_deref() == Some("first");
        Self { keys, byte_ids, add_space_prefix, spares_space, first_alone }
    }

    /// `behind_special`: the text begins here, or a special token stands before it; `is_first`: it
    /// begins here.
    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        (behind_special, is_first): (bool, bool),
        meter: &mut Meter<'_>,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let adds =
            self.add_space_prefix && if self.first_alone { is_first } else { behind_special };
        let spares = self.spares_space && text.starts_with([' ', '▁']);
        let prefix = if adds && !spares { SPM_SPACE } else { "" };
        let escaped = format!("{prefix}{}", text.replace(' ', SPM_SPACE));
        let bytes = escaped.as_bytes();
        let mut merger = Merger::default();
        for (at, c) in escaped.char_indices() {
            let len = c.len_utf8();
            merger.push(len as u32, vocab.id(&bytes[at..at + len]).unwrap_or(NO_TOKEN));
        }
        merger.run(meter, |left, right| {
            let start = left.start as usize;
            let id = vocab.id(&bytes[start..start + (left.len + right.len) as usize])?;
            Some(Merge { key: self.keys[id as usize], id })
        });
        meter.check()?;
        for symbol in merger.merged() {
            if symbol.id != NO_TOKEN {
                out.push(symbol.id);
                continue;
            }
            let start = symbol.start as usize;
            for byte in &bytes[start..start + symbol.len as usize] {
                match self.byte_ids[*byte as usize] {
                    NO_TOKEN => return Err(TokenizerError::NoTokenForByte { byte: *byte }),
                    id => out.push(id),
                }
            }
        }
        Ok(())
    }
}

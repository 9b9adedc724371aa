//! Text to tokens.

use std::collections::HashMap;

use super::merge::{Merge, Merger, NO_TOKEN, key_of_score};
use super::pre::PreTokenizer;
use super::specials::Fragment;
use super::vocab::Vocab;
use super::{Tokenizer, TokenizerError, VocabSource, byte_level};

/// Longest text for one call; positions are 32 bits, and SPM writes a space as three bytes.
const TEXT_BYTES_MAX: usize = 1 << 30;

/// SPM's space, U+2581.
pub(super) const SPM_SPACE: &str = "▁";

/// How words become tokens.
#[derive(Debug)]
pub(super) enum Model {
    /// Byte-level BPE.
    Bpe(Bpe),
    /// SentencePiece: the pair whose token scores highest merges first.
    Spm(Spm),
}

/// What holds where the file does not say.
pub(super) struct Defaults {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) add_bos: bool,
}

#[derive(Debug)]
pub(super) struct Bpe {
    pre: PreTokenizer,
    /// The token of each byte, or [`NO_TOKEN`].
    byte_ids: [u32; 256],
    /// By left token and right token: rank and merged token.
    merges: HashMap<(u32, u32), (u32, u32)>,
}

#[derive(Debug)]
pub(super) struct Spm {
    /// Merge key of each token.
    keys: Vec<u32>,
    /// The token that writes each byte where no token has the character, or [`NO_TOKEN`].
    byte_ids: [u32; 256],
    pub(super) add_space_prefix: bool,
}

impl Model {
    pub(super) fn new(
        vocab: &Vocab,
        source: &VocabSource,
    ) -> Result<(Self, Defaults), TokenizerError> {
        match source.model.as_str() {
            "gpt2" => {
                let bpe = Bpe::new(vocab, source)?;
                let defaults = Defaults { bos: None, eos: None, add_bos: bpe.pre.add_bos() };
                Ok((Self::Bpe(bpe), defaults))
            }
            "llama" => {
                let defaults = Defaults { bos: Some(1), eos: Some(2), add_bos: true };
                Ok((Self::Spm(Spm::new(vocab, source)), defaults))
            }
            found => Err(TokenizerError::UnknownModel { found: found.to_owned() }),
        }
    }
}

impl Bpe {
    fn new(vocab: &Vocab, source: &VocabSource) -> Result<Self, TokenizerError> {
        let pre = PreTokenizer::new(source.pre.as_deref().unwrap_or("default"))?;
        if source.merges.is_empty() {
            return Err(TokenizerError::MissingMerges);
        }
        let byte_ids = std::array::from_fn(|byte| {
            let c = byte_level::byte_to_char(byte as u8);
            vocab.id(c.encode_utf8(&mut [0; 4]).as_bytes()).unwrap_or(NO_TOKEN)
        });
        let mut merges = HashMap::with_capacity(source.merges.len());
        let mut joined = String::new();
        for (rank, merge) in source.merges.iter().enumerate() {
            // The left part has at least one character, which may itself be a space.
            let first = merge.chars().next().map_or(0, char::len_utf8);
            let Some(space) = merge[first..].find(' ') else { continue };
            let (left, right) = (&merge[..first + space], &merge[first + space + 1..]);
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            let ids = [left, right, &joined].map(|text| vocab.id(text.as_bytes()));
            // A merge of what the vocabulary lacks cannot lead to a token.
            if let [Some(left), Some(right), Some(id)] = ids {
                merges.entry((left, right)).or_insert((rank as u32, id));
            }
        }
        Ok(Self { pre, byte_ids, merges })
    }

    fn encode(&self, vocab: &Vocab, text: &str, out: &mut Vec<u32>) {
        let mut merger = Merger::default();
        let mut written = String::new();
        self.pre.split(text, &mut |word| {
            if self.pre.ignore_merges() {
                written.clear();
                written.extend(word.bytes().map(byte_level::byte_to_char));
                if let Some(id) = vocab.id(written.as_bytes()) {
                    out.push(id);
                    return;
                }
            }
            merger.clear();
            for byte in word.bytes() {
                merger.push(1, self.byte_ids[byte as usize]);
            }
            merger.run(|left, right| {
                let (key, id) = *self.merges.get(&(left.id, right.id))?;
                Some(Merge { key, id })
            });
            // A byte that the vocabulary lacks is left out, as llama.cpp does.
            out.extend(merger.merged().map(|s| s.id).filter(|id| *id != NO_TOKEN));
        });
    }
}

impl Spm {
    fn new(vocab: &Vocab, source: &VocabSource) -> Self {
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
        Self { keys, byte_ids, add_space_prefix }
    }

    fn encode(&self, vocab: &Vocab, text: &str, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let bytes = text.as_bytes();
        let mut merger = Merger::default();
        for (at, c) in text.char_indices() {
            let len = c.len_utf8();
            merger.push(len as u32, vocab.id(&bytes[at..at + len]).unwrap_or(NO_TOKEN));
        }
        merger.run(|left, right| {
            let start = left.start as usize;
            let id = vocab.id(&bytes[start..start + (left.len + right.len) as usize])?;
            Some(Merge { key: self.keys[id as usize], id })
        });
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

impl Tokenizer {
    /// Tokens of a text.
    ///
    /// `add_special` adds BOS and EOS where the model wants them. `parse_special` takes the text of
    /// a control token in `text` for that token; without it, only user-defined tokens are found so.
    ///
    /// # Errors
    /// A text of more than 1 GiB, or an SPM vocabulary without a token for some byte.
    pub fn encode(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(TokenizerError::TextTooLong { bytes: text.len(), limit: TEXT_BYTES_MAX });
        }
        let mut out = Vec::with_capacity(text.len() / 4 + 2);
        out.extend(self.added_bos.filter(|_| add_special));
        if !text.is_empty() {
            let mut behind_special = true;
            for fragment in self.specials.split(&self.vocab, text, parse_special) {
                match fragment {
                    Fragment::Token(id) => out.push(id),
                    Fragment::Text(text) => self.encode_text(text, behind_special, &mut out)?,
                }
                behind_special = matches!(fragment, Fragment::Token(_));
            }
        }
        out.extend(self.added_eos.filter(|_| add_special));
        Ok(out)
    }

    fn encode_text(
        &self,
        text: &str,
        behind_special: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        match &self.model {
            Model::Bpe(bpe) => {
                bpe.encode(&self.vocab, text, out);
                Ok(())
            }
            Model::Spm(spm) => {
                let prefix = if spm.add_space_prefix && behind_special { SPM_SPACE } else { "" };
                let escaped = format!("{prefix}{}", text.replace(' ', SPM_SPACE));
                spm.encode(&self.vocab, &escaped, out)
            }
        }
    }
}

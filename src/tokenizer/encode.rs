//! Text to tokens.

use std::borrow::Cow;

use super::bpe::Bpe;
use super::meter::Meter;
use super::pre_names::Spelling;
use super::specials::Fragment;
use super::spm::Spm;
use super::unigram::Unigram;
use super::vocab::Vocab;
use super::wordpiece::WordPiece;
use super::{Tokenizer, TokenizerError, VocabSource};

/// Longest text for one call; positions are 32 bits, and SPM writes a space as three bytes.
const TEXT_BYTES_MAX: usize = 1 << 30;

/// SPM's space, U+2581.
pub(super) const SPM_SPACE: &str = "▁";

/// Algorithm that turns words into tokens.
#[derive(Debug)]
pub(super) enum Model {
    /// Byte-pair encoding, most often of bytes.
    Bpe(Bpe),
    /// SentencePiece: the pair whose token scores highest merges first.
    Spm(Spm),
    /// BERT's: the longest token from the left.
    WordPiece(WordPiece),
    /// The cut whose tokens score highest.
    Unigram(Unigram),
}

/// Defaults for keys absent from the file.
#[derive(Default)]
pub(super) struct Defaults {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) sep: Option<u32>,
    pub(super) unk: Option<u32>,
    pub(super) add_bos: bool,
    pub(super) add_eos: bool,
    pub(super) add_sep: bool,
}

impl Defaults {
    /// The defaults of a kind of vocabulary; ids that it does not have are left out.
    fn of(model: &str, vocab: &Vocab) -> Self {
        let id = |id: u32| Some(id).filter(|id| (*id as usize) < vocab.len());
        match model {
            "llama" => Self { bos: id(1), eos: id(2), add_bos: true, ..Self::default() },
            "bert" => Self {
                bos: id(101),
                sep: id(102),
                unk: id(100),

                add_bos: true,
                add_sep: true,
                ..Self::default()
            },
            "t5" => Self { eos: id(1), unk: id(2), add_eos: true, ..Self::default() },
            _ => Self::default(),
        }
    }
}

impl Model {
    pub(super) fn new(
        vocab: &Vocab,
        source: &VocabSource,
    ) -> Result<(Self, Defaults), TokenizerError> {
        let mut defaults = Defaults::of(&source.model, vocab);
        let unknown = source.unk.or(defaults.unk);
        let model = match source.model.as_str() {
            "gpt2" | "gemma4" | "whitespace" => {
                let bpe = Bpe::new(vocab, source)?;
                defaults.add_bos = bpe.adds_bos();
                Self::Bpe(bpe)
            }
            "llama" => Self::Spm(Spm::new(vocab, source)),
            "bert" => Self::WordPiece(WordPiece::new(vocab, source, unknown)?),
            "t5" => Self::Unigram(Unigram::new(vocab, source, unknown)?),
            found => return Err(TokenizerError::UnknownModel { found: found.to_owned() }),
        };
        Ok((model, defaults))
    }

    /// True if tokens are bytes in the byte-level alphabet.
    pub(super) fn is_byte_level(&self) -> bool {
        matches!(self, Self::Bpe(bpe) if bpe.spelling() == Spelling::Bytes)
    }

    /// True if no token stands for more bytes than its text has.
    pub(super) fn keeps_every_byte(&self) -> bool {
        match self {
            Self::Bpe(bpe) => bpe.keeps_every_byte(),
            Self::Spm(_) => true,
            Self::WordPiece(_) | Self::Unigram(_) => false,
        }
    }

    /// True if a space that no text has is put before the text.
    pub(super) fn puts_space_first(&self) -> bool {
        match self {
            Self::Bpe(_) => false,
            Self::Spm(spm) => spm.add_space_prefix,
            Self::WordPiece(_) => true,
            Self::Unigram(unigram) => unigram.add_space_prefix,
        }
    }
}

impl Tokenizer {
    /// Tokens of a text.
    ///
    /// `add_special` adds BOS and EOS where the model wants them. `parse_special` takes the text of
    /// a control token in `text` for that token; without it, only user-defined tokens are found so.
    ///
    /// # Errors
    /// A text of more than 1 GiB (64 MiB for Unigram), an SPM vocabulary without a token for some
    /// byte, or a broken map of characters.
    pub fn encode(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        let mut out = Vec::new();
        self.encode_into(text, add_special, parse_special, &mut Meter::unlimited(), &mut out)?;
        Ok(out)
    }

    /// The same, appended to `out`, as far as the meter lets it go. Past its limit of tokens, `out`
    /// has at least as many, which are the first of the text's.
    ///
    /// # Errors
    /// As [`Self::encode`], and where the meter stops.
    pub fn encode_into(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
        meter: &mut Meter<'_>,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        self.encode_without(text, (add_special, parse_special), None, meter, out)
    }

    /// Appends the tokens of a prompt whose texts were prepared by
    /// [`mark_specials`](Self::mark_specials).
    ///
    /// # Errors
    /// As [`encode_into`](Self::encode_into).
    pub fn encode_marked(
        &self,
        prompt: &str,
        add_special: bool,
        mark: char,
        meter: &mut Meter<'_>,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        self.encode_without(prompt, (add_special, true), Some(mark), meter, out)
    }

    fn encode_without(
        &self,
        text: &str,
        (add_special, parse_special): (bool, bool),
        mark: Option<char>,
        meter: &mut Meter<'_>,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(TokenizerError::TextTooLong { bytes: text.len(), limit: TEXT_BYTES_MAX });
        }
        out.reserve(text.len() / 8 + 2);
        out.extend(self.added_bos.filter(|_| add_special));
        if !text.is_empty() {
            let (mut behind_special, mut is_first) = (true, true);
            let fragments = self.specials.split(&self.vocab, text, parse_special, meter);
            for fragment in fragments.into_iter().flatten() {
                match fragment {
                    Fragment::Token(id) => out.push(id),
                    Fragment::Text(text) => {
                        let text = match mark {
                            Some(mark) if text.contains(mark) => Cow::Owned(text.replace(mark, "")),
                            _ => Cow::Borrowed(text),
                        };
                        self.encode_text(&text, (behind_special, is_first), meter, out)?;
                    }
                }
                meter.has_tokens(out.len());
                meter.check()?;
                behind_special = matches!(fragment, Fragment::Token(_));
                is_first = false;
            }
            meter.check()?;
        }
        out.extend(self.added_end.filter(|_| add_special));
        Ok(())
    }

    fn encode_text(
        &self,
        text: &str,
        (behind_special, is_first): (bool, bool),
        meter: &mut Meter<'_>,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let text = &*match self.normal_form {
            Some(form) => form.of(text),
            None => Cow::Borrowed(text),
        };
        match &self.model {
            Model::Bpe(bpe) => bpe.encode(&self.vocab, text, self.lowercase, meter, out),
            Model::Spm(spm) => {
                spm.encode(&self.vocab, text, (behind_special, is_first), meter, out)?;
            }
            Model::WordPiece(wordpiece) => wordpiece.encode(&self.vocab, text, meter, out),
            Model::Unigram(unigram) => unigram.encode(&self.vocab, text, meter, out)?,
        }
        Ok(())
    }
}

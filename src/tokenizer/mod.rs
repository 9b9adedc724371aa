//! Text to tokens and back.
//!
//! Built in memory from a model file's own vocabulary ([`VocabSource`]): BPE (`bpe`),
//! SentencePiece-style merging by score (`spm`), WordPiece (`wordpiece`) or Unigram (`unigram`).
//! Its measure is llama.cpp: the same ids for every text. It knows nothing of sessions; it is
//! immutable and shared between threads.
//!
//! The walk of a text: `specials` cuts out special tokens; the rest goes to the model. BPE cuts it
//! into words by `pre`, and `merge` merges each word's bytes or characters into tokens, as it does
//! for SPM, which has no words.

mod bpe;
mod byte_level;
mod charsmap;
mod decode;
mod encode;
mod error;
mod fuzz;
mod literal;
mod merge;
mod meter;
mod pre;
mod pre_names;
mod prefixes;
mod source;
mod specials;
mod spm;
mod stop_matcher;
mod stops;
mod stream;
mod unicode;
mod unigram;
mod vocab;
mod wordpiece;

#[cfg(test)]
mod tests;

pub use error::TokenizerError;
pub use fuzz::fuzz_tokenizer;
pub use literal::{unused_mark, without_escaped_marks};
pub use meter::Meter;
pub use source::VocabSource;
pub use stop_matcher::{StopMatcher, StopOutput};
pub use stream::StreamDecoder;

use encode::Model;
use specials::Specials;
use unicode::NormalForm;
use vocab::Vocab;

/// A model's tokenizer.
#[derive(Debug)]
pub struct Tokenizer {
    vocab: Vocab,
    model: Model,
    specials: Specials,
    /// Ascending.
    stops: Vec<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    sep: Option<u32>,
    /// BOS, where one is added.
    added_bos: Option<u32>,
    /// EOS, or BERT's separator, where one is added.
    added_end: Option<u32>,
    /// Text is taken in lower case by a vocabulary of words.
    lowercase: bool,
    /// Form that text is brought to behind the search for special tokens.
    normal_form: Option<NormalForm>,
}

impl Tokenizer {
    /// Builds the tokenizer of a vocabulary.
    ///
    /// # Errors
    /// A vocabulary of an unknown kind or whose parts do not fit each other.
    pub fn new(mut source: VocabSource) -> Result<Self, TokenizerError> {
        source.check()?;
        let mut vocab = Vocab::new(&source.tokens, &source.token_types)?;
        let (model, defaults) = Model::new(&vocab, &source)?;
        let vocab_size = vocab.len() as u32;
        let or_default =
            |id: Option<u32>, default: Option<u32>| id.or(default.filter(|id| *id < vocab_size));
        source.bos = or_default(source.bos, defaults.bos);
        source.eos = or_default(source.eos, defaults.eos);
        let stops = stops::collect(&mut vocab, &source);
        let specials = Specials::new(&vocab, &source)?;
        source.sep = or_default(source.sep, defaults.sep);
        let added_bos = added(
            source.add_bos.unwrap_or(defaults.add_bos),
            source.bos,
            "tokenizer.ggml.add_bos_token",
            "tokenizer.ggml.bos_token_id",
        )?;
        let added_eos = added(
            source.add_eos.unwrap_or(defaults.add_eos),
            source.eos,
            "tokenizer.ggml.add_eos_token",
            "tokenizer.ggml.eos_token_id",
        )?;
        let added_sep = added(
            source.add_sep.unwrap_or(defaults.add_sep),
            source.sep,
            "tokenizer.ggml.add_sep_token",
            "tokenizer.ggml.seperator_token_id",
        )?;
        // Only BERT's separator stands behind a single text; elsewhere it stands between two.
        let is_bert = matches!(model, Model::WordPiece(_));
        Ok(Self {
            vocab,
            model,
            specials,
            stops,
            bos: source.bos,
            eos: source.eos,
            sep: source.sep,
            added_bos,
            added_end: if is_bert { added_sep } else { added_eos },
            lowercase: source.lowercase.unwrap_or(false),
            normal_form: source.normalizer.as_deref().map(NormalForm::named).transpose()?,
        })
    }

    /// Number of tokens.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// Beginning of sequence.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// End of sequence.
    #[must_use]
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Separator of texts.
    #[must_use]
    pub fn sep(&self) -> Option<u32> {
        self.sep
    }

    /// Token that [`encode`](Self::encode) appends when special tokens are added.
    #[must_use]
    pub fn added_end(&self) -> Option<u32> {
        self.added_end
    }

    /// True if [`encode`](Self::encode) puts BOS first when special tokens are added.
    #[must_use]
    pub fn adds_bos(&self) -> bool {
        self.added_bos.is_some()
    }

    /// Least number of tokens that a text can become, without a look at more than its spaces: none
    /// is longer than the vocabulary's longest. 0 where a vocabulary writes one token for any
    /// number of bytes that it does not know.
    #[must_use]
    pub fn tokens_min(&self, text: &str) -> usize {
        if self.normal_form.is_some() || !self.model.keeps_every_byte() {
            return 0;
        }
        let bytes = match self.specials.swallow() {
            true => text.bytes().filter(|byte| !byte.is_ascii_whitespace() && *byte != 0xb).count(),
            false => text.len(),
        };
        bytes / self.vocab.token_bytes_max().max(1)
    }

    /// Most bytes that tokens can become as text.
    #[must_use]
    pub fn text_bytes_max(&self, tokens: &[u32]) -> usize {
        tokens.iter().filter_map(|token| self.token_text(*token)).map(str::len).sum()
    }

    /// True if this token ends a generation.
    #[must_use]
    pub fn is_stop(&self, token: u32) -> bool {
        self.stops.binary_search(&token).is_ok()
    }

    /// The tokens that end a generation, ascending.
    #[must_use]
    pub fn stop_ids(&self) -> &[u32] {
        &self.stops
    }

    /// True if it is a control token, which is no text; unknown tokens are.
    #[must_use]
    pub fn is_control(&self, token: u32) -> bool {
        self.vocab.check(token).is_ok_and(|token| self.vocab.kind(token).is_hidden())
    }

    /// True if it is a token that whoever made the vocabulary added to it.
    #[must_use]
    pub fn is_user_defined(&self, token: u32) -> bool {
        let user_defined = vocab::Kind::USER_DEFINED;
        self.vocab.check(token).is_ok_and(|token| self.vocab.kind(token).is(user_defined))
    }

    /// The token that the vocabulary writes so.
    #[must_use]
    pub fn token_of_text(&self, text: &str) -> Option<u32> {
        self.vocab.id(text.as_bytes())
    }

    /// A token as the vocabulary writes it: with `▁` or the byte-level alphabet for spaces.
    #[must_use]
    pub fn token_text(&self, token: u32) -> Option<&str> {
        self.vocab.check(token).ok().map(|token| self.vocab.text(token))
    }
}

/// The special token to add, if one is.
fn added(
    flag: bool,
    id: Option<u32>,
    flag_key: &'static str,
    key: &'static str,
) -> Result<Option<u32>, TokenizerError> {
    match (flag, id) {
        (false, _) => Ok(None),
        (true, Some(id)) => Ok(Some(id)),
        (true, None) => Err(TokenizerError::MissingSpecial { flag: flag_key, key }),
    }
}

//! What a tokenizer is built from, as a model file states it.

use super::{TokenizerError, pre_names};
use crate::gguf::{GgufError, Metadata, StrArray};

/// Key of the tokens' kinds.
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
/// Key of the tokens' scores.
const SCORES: &str = "tokenizer.ggml.scores";
/// Key of Unigram's map of characters.
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

/// A vocabulary and its settings, in the terms of the file's `tokenizer.*` keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VocabSource {
    /// `tokenizer.ggml.model`: `gpt2` or `gemma4` (BPE), `llama` (SPM), `bert` (WordPiece), `t5`
    /// (Unigram), `whitespace` (BPE of words).
    pub model: String,
    /// `tokenizer.ggml.pre`; `None` is `default`.
    pub pre: Option<String>,
    /// An unknown `pre` is taken as `default` instead of being refused.
    pub pre_fallback: bool,
    /// `general.architecture`: for the white space that some models' special tokens swallow.
    pub architecture: Option<String>,
    /// `general.name`: some models' special tokens swallow white space, told by this name alone.
    pub model_name: Option<String>,
    /// Text of each token.
    pub tokens: StrArray,
    /// Score of each token; empty makes all 0. SPM merges the highest first, Unigram adds them up.
    pub scores: Vec<f32>,
    /// Kind of each token (1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte); empty
    /// makes all normal.
    pub token_types: Vec<i32>,
    /// BPE's merges, `"left right"`, best first.
    pub merges: StrArray,
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// End of turn.
    pub eot: Option<u32>,
    /// End of message.
    pub eom: Option<u32>,
    /// Unknown.
    pub unk: Option<u32>,
    /// Separator, behind each text of a BERT model.
    pub sep: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Fill-in-the-middle tokens that end a generation: padding, repository, file separator.
    pub fim_stops: Vec<u32>,
    /// Further tokens that end one (`tokenizer.ggml.eos_token_ids`, which hob makes of a folder).
    pub other_stops: Vec<u32>,
    /// Add BOS to a prompt; `None` leaves it to the kind of tokenizer.
    pub add_bos: Option<bool>,
    /// Add EOS to a prompt; `None` leaves it to the kind of tokenizer.
    pub add_eos: Option<bool>,
    /// Add the separator to a prompt; `None` leaves it to the kind of tokenizer.
    pub add_sep: Option<bool>,
    /// A space is put before the text, by SPM also behind special tokens; `None` is yes for SPM and
    /// no for Unigram.
    pub add_space_prefix: Option<bool>,
    /// White space that each token swallows where it is found in text: 0 none, 1 before it, 2
    /// behind it; empty leaves that to the model's names. This and the three below are of keys that
    /// hob makes of a folder.
    pub token_strips: Vec<i32>,
    /// Unicode's normalisation form of text, `nfc`, `nfd`, `nfkc` or `nfkd`; `None` is as it comes.
    pub normalizer: Option<String>,
    /// BPE: a word that is a token as it stands is not merged; `None` leaves it to `pre`.
    pub ignore_merges: Option<bool>,
    /// SPM: a space is put before text that begins with none, `always` also behind special tokens,
    /// `first` at the beginning alone; `None` is as `add_space_prefix`.
    pub space_prefix: Option<String>,
    /// Unigram: white space is one space, and none at the end; `None` is no.
    pub remove_extra_whitespaces: Option<bool>,
    /// WordPiece: text in lower case; `None` is yes.
    pub lowercase: Option<bool>,
    /// WordPiece: text without accents; `None` is as `lowercase`.
    pub strip_accents: Option<bool>,
    /// Unigram: SentencePiece's precompiled map of characters; empty maps none.
    pub charsmap: Vec<u8>,
}

impl VocabSource {
    /// Reads a file's `tokenizer.*` keys. Their arrays are not needed again.
    ///
    /// # Errors
    /// A key that is missing or has a value of the wrong type.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, GgufError> {
        let id = |name: &str| metadata.opt_u32(&format!("tokenizer.ggml.{name}_token_id"));
        let flag = |name: &str| metadata.opt_bool(&format!("tokenizer.ggml.{name}"));
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let mut fim_stops = Vec::new();
        for name in ["fim_pad", "fim_rep", "fim_sep"] {
            fim_stops.extend(id(name)?);
        }
        let normalizer = |name: &str| flag(&format!("normalizer.{name}"));
        Ok(Self {
            model: metadata.str("tokenizer.ggml.model")?.to_owned(),
            pre: owned(metadata.opt_str("tokenizer.ggml.pre")?),
            pre_fallback: false,
            architecture: owned(metadata.opt_str("general.architecture")?),
            model_name: owned(metadata.opt_str("general.name")?),
            tokens: metadata.str_array("tokenizer.ggml.tokens")?.clone(),
            scores: scores(metadata)?,
            token_types: metadata.opt_i32_array(TOKEN_TYPE)?.unwrap_or_default().into_owned(),
            merges: metadata.opt_str_array("tokenizer.ggml.merges")?.cloned().unwrap_or_default(),
            bos: id("bos")?,
            eos: id("eos")?,
            eot: id("eot")?,
            eom: id("eom")?,
            unk: id("unknown")?,
            // The format's own spelling.
            sep: id("seperator")?,
            pad: id("padding")?,
            fim_stops,
            other_stops: metadata
                .opt_u32_array("tokenizer.ggml.eos_token_ids")?
                .unwrap_or_default()
                .into_owned(),
            add_bos: flag("add_bos_token")?,
            add_eos: flag("add_eos_token")?,
            add_sep: flag("add_sep_token")?,
            add_space_prefix: flag("add_space_prefix")?,
            token_strips: metadata
                .opt_i32_array("tokenizer.ggml.token_strips")?
                .unwrap_or_default()
                .into_owned(),
            normalizer: owned(metadata.opt_str("tokenizer.ggml.normalizer")?),
            ignore_merges: flag("ignore_merges")?,
            space_prefix: owned(metadata.opt_str("tokenizer.ggml.space_prefix")?),
            remove_extra_whitespaces: flag("remove_extra_whitespaces")?,
            lowercase: normalizer("lowercase")?,
            strip_accents: normalizer("strip_accents")?,
            charsmap: metadata.opt_bytes(CHARSMAP)?.unwrap_or_default(),
        })
    }

    /// The name of the pre-tokenizer to use, where one is given.
    pub(super) fn pre_tokenizer(&self) -> Option<&str> {
        // These kinds of vocabulary have one each.
        if matches!(self.model.as_str(), "gemma4" | "whitespace") {
            return Some(&self.model);
        }
        let known = |name: &&str| !self.pre_fallback || pre_names::rule(name).is_some();
        self.pre.as_deref().filter(known)
    }

    /// The unknown pre-tokenizer that `default` stands in for, where it does.
    #[must_use]
    pub fn replaced_pre_tokenizer(&self) -> Option<&str> {
        let is_bpe = self.model == "gpt2";
        self.pre.as_deref().filter(|_| is_bpe && self.pre_tokenizer().is_none())
    }

    /// Checks lengths and ids against each other.
    pub(super) fn check(&self) -> Result<(), TokenizerError> {
        if self.tokens.is_empty() {
            return Err(TokenizerError::EmptyVocab);
        }
        let wanted = self.tokens.len();
        for (key, found) in [(TOKEN_TYPE, self.token_types.len()), (SCORES, self.scores.len())] {
            if found != 0 && found < wanted {
                return Err(TokenizerError::ArrayLength { key, found, wanted });
            }
        }
        let ids = [
            ("tokenizer.ggml.bos_token_id", self.bos),
            ("tokenizer.ggml.eos_token_id", self.eos),
            ("tokenizer.ggml.eot_token_id", self.eot),
            ("tokenizer.ggml.eom_token_id", self.eom),
            ("tokenizer.ggml.unknown_token_id", self.unk),
            ("tokenizer.ggml.seperator_token_id", self.sep),
            ("tokenizer.ggml.padding_token_id", self.pad),
        ];
        let fim = self.fim_stops.iter().map(|id| ("tokenizer.ggml.fim_*_token_id", Some(*id)));
        let other = self.other_stops.iter().map(|id| ("tokenizer.ggml.eos_token_ids", Some(*id)));
        for (key, id) in ids.into_iter().chain(fim).chain(other) {
            if let Some(id) = id.filter(|id| *id as usize >= wanted) {
                return Err(TokenizerError::IdOutOfRange { key, id, vocab_size: wanted });
            }
        }
        Ok(())
    }
}

/// The tokens' scores, which some files have as integers.
fn scores(metadata: &Metadata) -> Result<Vec<f32>, GgufError> {
    match metadata.opt_i32_array(SCORES) {
        Ok(Some(scores)) => Ok(scores.iter().map(|score| *score as f32).collect()),
        _ => Ok(metadata.opt_f32_array(SCORES)?.unwrap_or_default().into_owned()),
    }
}

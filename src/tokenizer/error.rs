//! What can go wrong between text and tokens.

use thiserror::Error;

/// A vocabulary that cannot be used, or text or tokens that it cannot express.
#[derive(Debug, Error)]
pub enum TokenizerError {
    /// A kind of tokenizer that is not built here.
    #[error(
        "tokenizer.ggml.model is {found:?}; wanted \"gpt2\" or \"gemma4\" (BPE), \"llama\" (SPM), \
         \"bert\" (WordPiece), \"t5\" (Unigram) or \"whitespace\""
    )]
    UnknownModel {
        /// Contents of the file.
        found: String,
    },
    /// A pre-tokenizer that is not built here.
    #[error(
        "tokenizer.ggml.pre is {found:?}; wanted one of: {known}; --tokenizer-fallback cuts text by \
         \"default\" instead, which makes some words other tokens than the model was trained on"
    )]
    UnknownPre {
        /// Contents of the file.
        found: String,
        /// The names known, separated by commas.
        known: String,
    },
    /// No tokens.
    #[error("tokenizer.ggml.tokens is empty")]
    EmptyVocab,
    /// More tokens than ids.
    #[error("tokenizer.ggml.tokens has {found} entries or too much text; at most {limit} fit")]
    VocabTooLarge {
        /// Entries.
        found: usize,
        /// Most entries, and most bytes of text in all.
        limit: u32,
    },
    /// An array that goes with the tokens has another length.
    #[error("{key} has {found} entries; tokenizer.ggml.tokens has {wanted}")]
    ArrayLength {
        /// Values of the array.
        key: &'static str,
        /// Length.
        found: usize,
        /// The number of tokens.
        wanted: usize,
    },
    /// A special token's id is not in the vocabulary.
    #[error("{key} is {id}; the vocabulary has {vocab_size} tokens")]
    IdOutOfRange {
        /// Key in question.
        key: &'static str,
        /// Value.
        id: u32,
        /// The number of tokens.
        vocab_size: usize,
    },
    /// BPE without merges.
    #[error("tokenizer.ggml.model is \"gpt2\", but tokenizer.ggml.merges is missing or empty")]
    MissingMerges,
    /// A token is to be added that the file does not name.
    #[error("{flag} is true, but {key} is missing")]
    MissingSpecial {
        /// The key that wants it.
        flag: &'static str,
        /// The key that should name it.
        key: &'static str,
    },
    /// The map of characters is not one.
    #[error("tokenizer.ggml.precompiled_charsmap, {bytes} bytes, is broken: {detail}")]
    Charsmap {
        /// Length.
        bytes: usize,
        /// Fault found.
        detail: &'static str,
    },
    /// A normalisation form that Unicode does not have.
    #[error("tokenizer.ggml.normalizer: wanted nfc, nfd, nfkc or nfkd, found {found:?}")]
    UnknownNormalizer {
        /// Value found.
        found: String,
    },
    /// The special tokens' texts cannot be searched for.
    #[error("the special tokens' texts do not fit a matcher: {0}")]
    Specials(#[from] aho_corasick::BuildError),
    /// The file's metadata lacks a key or holds another type.
    #[error(transparent)]
    Metadata(#[from] crate::gguf::GgufError),
    /// The vocabulary has no way to write a byte.
    #[error("the vocabulary has no token for the byte 0x{byte:02X}, and no unknown token")]
    NoTokenForByte {
        /// Byte in question.
        byte: u8,
    },
    /// A token that is not in the vocabulary.
    #[error("token {token} is not in the vocabulary of {vocab_size}")]
    UnknownToken {
        /// Token id.
        token: u32,
        /// The number of tokens.
        vocab_size: usize,
    },
    /// The caller's flag was raised.
    #[error("encoding was cancelled")]
    Cancelled,
    /// More tokens than the caller wants.
    #[error("the text has more than {limit} tokens")]
    TooManyTokens {
        /// Largest allowed value.
        limit: usize,
    },
    /// Text too long for one call.
    #[error("the text has {bytes} bytes; at most {limit} can be encoded at once")]
    TextTooLong {
        /// Length.
        bytes: usize,
        /// Largest allowed value.
        limit: usize,
    },
}

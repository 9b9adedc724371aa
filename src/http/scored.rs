//! Log probabilities of tokens, with the bytes that clients show.

use crate::engine::TokenLogprob;
use crate::server::InUse;

/// A token with its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scored {
    pub(super) token: TokenLogprob,
    /// The bytes of the token, and of each of the most likely ones.
    pub(super) bytes: Vec<u8>,
    pub(super) top_bytes: Vec<Vec<u8>>,
}

/// A token's log-probability with the bytes that clients show.
pub(super) fn scored(model: &InUse, token: TokenLogprob) -> Scored {
    let bytes = |id: u32| {
        model.tokenizer.token_bytes(id).map(|bytes| bytes.into_owned()).unwrap_or_default()
    };
    Scored {
        bytes: bytes(token.id),
        top_bytes: token.top.iter().map(|(id, _)| bytes(*id)).collect(),
        token,
    }
}

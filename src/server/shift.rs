//! A conversation longer than its context: which turns are left out.
//!
//! Keys and values depend on all that stands before them. What follows a turn that is left out is
//! therefore computed anew: the cache serves the system prompt alone.

use super::conversation::Conversation;
use super::text::{self, Job};
use crate::chat::ChatMessage;
use crate::engine::EngineHandle;
use crate::protocol::{ErrorObject, Shifted};

/// Tokens of a conversation that leave room for an answer, and what was left out for it: as few of
/// the oldest turns behind the system prompt as will do. The last turn always stays, so that the
/// result may still be too long.
pub(super) async fn fit(
    job: &Job,
    engine: &EngineHandle,
    conversation: Conversation,
    context_tokens: u32,
    tokens_max: u32,
) -> Result<(Vec<u32>, Option<Shifted>), ErrorObject> {
    // An answer of more than a quarter of the context is not worth more of what was said.
    let answer = tokens_max.min(context_tokens / 4).max(1);
    let room = context_tokens.saturating_sub(answer) as usize;
    let whole = text::encode_conversation(job, engine, conversation.clone(), None).await?;
    if whole.len() <= room {
        return Ok((whole, None));
    }
    let messages = &conversation.messages;
    let cuts = cuts(messages);
    let first = messages.iter().take_while(|message| is_system(message)).count();
    // The fewest cuts that fit: the prompt only gets shorter with each.
    let (mut least, mut most) = (1, cuts.len());
    let mut best = None;
    while least <= most {
        let count = (least + most) / 2;
        let cut = cuts[count - 1];
        let kept = [&messages[..first], &messages[cut..]].concat();
        let tokens = text::encode_conversation(job, engine, conversation.with(kept), None).await?;
        let fits = tokens.len() <= room;
        if fits || count == cuts.len() {
            best = Some((tokens, cut));
        }
        if fits {
            most = count - 1;
        } else {
            least = count + 1;
        }
    }
    let Some((tokens, cut)) = best else { return Ok((whole, None)) };
    let shifted = Shifted {
        messages: (cut - first) as u32,
        tokens: whole.len().saturating_sub(tokens.len()) as u32,
    };
    Ok((tokens, Some(shifted)))
}

fn is_system(message: &ChatMessage) -> bool {
    message.role == "system"
}

/// Places where a shortened conversation may continue after the system prompt: the start of each
/// turn but the first.
fn cuts(messages: &[ChatMessage]) -> Vec<usize> {
    let first = messages.iter().take_while(|message| is_system(message)).count();
    (first + 1..messages.len()).filter(|at| messages[*at].role == "user").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_begin_with_the_user() {
        let messages = ["system", "user", "assistant", "user", "tool", "user"]
            .map(|role| ChatMessage::new(role, ""));
        assert_eq!(cuts(&messages), [3, 5]);
        assert_eq!(cuts(&messages[1..2]), [0_usize; 0]);
    }
}

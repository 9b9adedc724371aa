//! Which tokens end a generation, told by their text as well as by the file's keys.
//!
//! Files often name one end token and use another; the texts are those llama.cpp looks for.

use super::VocabSource;
use super::vocab::{Kind, Vocab};

/// Texts of tokens that end a generation.
const STOP_TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    // Fill-in-the-middle: padding, repository, file separator.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Texts of control tokens that do not end one, whatever kind the file gives them.
const CONTROL_TEXTS: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
];

/// Texts of gpt-oss's channel tokens, which are shown.
const SHOWN_TEXTS: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// Finds the stop tokens, in ascending order, and sets the kinds of tokens known by their text.
pub(super) fn collect(vocab: &mut Vocab, source: &VocabSource) -> Vec<u32> {
    let find = |vocab: &Vocab, text: &str| vocab.id(text.as_bytes());
    let mut stops: Vec<u32> = [source.eos, source.eot, source.eom].into_iter().flatten().collect();
    stops.extend(source.fim_stops.iter().chain(&source.other_stops));
    for text in STOP_TEXTS {
        if let Some(id) = find(vocab, text) {
            vocab.add_control(id);
            stops.push(id);
        }
    }
    for text in CONTROL_TEXTS {
        if let Some(id) = find(vocab, text) {
            vocab.add_control(id);
        }
    }
    for text in SHOWN_TEXTS {
        if let Some(id) = find(vocab, text) {
            vocab.set_kind(id, Kind::USER_DEFINED);
        }
    }
    let mut drop = |vocab: &mut Vocab, text: &str, kind: Kind| {
        if let Some(id) = find(vocab, text) {
            stops.retain(|stop| *stop != id);
            vocab.set_kind(id, kind);
        }
    };
    // gpt-oss and Solar end channels, not generations, with <|end|>.
    let has = |vocab: &Vocab, text: &str| find(vocab, text).is_some();
    let has_call = has(vocab, "<|call|>") || has(vocab, "<|calls|>");
    if has_call && (has(vocab, "<|return|>") || has(vocab, "<|flush|>")) {
        drop(vocab, "<|end|>", Kind::USER_DEFINED);
    }
    // Gemma 4 has </s> for HTML.
    if has(vocab, "<|tool_response>") {
        drop(vocab, "</s>", Kind::NORMAL);
    }
    stops.sort_unstable();
    stops.dedup();
    stops
}

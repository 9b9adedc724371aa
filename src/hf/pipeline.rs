//! The steps of `tokenizer.json` around its vocabulary: normaliser, pre-tokenizer, post-processor
//! and decoder. Each is followed, or refused by its name: one that were passed over would give
//! other tokens.

use serde_json::Value as Json;

/// A step that hob does not follow.
#[derive(Debug)]
pub(super) struct Unfollowed {
    pub(super) key: String,
    pub(super) wanted: String,
    pub(super) found: String,
}

impl Unfollowed {
    pub(super) fn new(key: &str, wanted: &str, found: impl ToString) -> Self {
        Self { key: key.to_owned(), wanted: wanted.to_owned(), found: found.to_string() }
    }
}

/// Where a vocabulary that writes spaces as U+2581 puts one that no text has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpacePrefix {
    /// Nowhere.
    Never,
    /// Before each stretch of text between special tokens.
    Everywhere,
    /// The same, unless it begins with a space.
    Always,
    /// Before the text, unless it begins with a space or a special token.
    First,
}

/// The steps before the merges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Steps {
    /// Unicode's normalisation form of the text, in small letters.
    pub(super) form: Option<String>,
    pub(super) prefix: SpacePrefix,
}

/// U+2581, as which spaces are written.
const SPACE: &str = "▁";

/// The steps of a pipeline in their order, those of sequences among them.
fn steps<'a>(json: &'a Json, list: &str) -> Vec<&'a Json> {
    if json.is_null() {
        return Vec::new();
    }
    match (kind(json), json.get(list).and_then(Json::as_array)) {
        ("Sequence", Some(inner)) => inner.iter().flat_map(|step| steps(step, list)).collect(),
        _ => vec![json],
    }
}

fn kind(step: &Json) -> &str {
    step.get("type").and_then(Json::as_str).unwrap_or("a step without a type")
}

fn text<'a>(step: &'a Json, key: &str) -> Option<&'a str> {
    step.get(key).and_then(Json::as_str)
}

fn flag(step: &Json, key: &str) -> Option<bool> {
    step.get(key).and_then(Json::as_bool)
}

/// The steps of a vocabulary with a token for each byte and with spaces as U+2581.
pub(super) fn escaped(normalizer: &Json, pre_tokenizer: &Json) -> Result<Steps, Unfollowed> {
    let (mut form, mut prefix, mut escapes) = (None, SpacePrefix::Never, false);
    for step in steps(normalizer, "normalizers") {
        match kind(step) {
            name @ ("NFC" | "NFD" | "NFKC" | "NFKD") if form.is_none() => {
                form = Some(name.to_lowercase());
            }
            "Prepend" if text(step, "prepend") == Some(SPACE) => prefix = SpacePrefix::Everywhere,
            "Replace"
                if step["pattern"]["String"] == " " && text(step, "content") == Some(SPACE) =>
            {
                escapes = true;
            }
            _ => {
                return Err(Unfollowed::new(
                    "normalizer",
                    "NFC, Prepend or Replace of spaces",
                    step,
                ));
            }
        }
    }
    for step in steps(pre_tokenizer, "pretokenizers") {
        match kind(step) {
            "Metaspace" if text(step, "replacement") == Some(SPACE) && !escapes => {
                if flag(step, "split") != Some(false) {
                    let found = step.get("split").unwrap_or(&Json::Bool(true));
                    return Err(Unfollowed::new("pre_tokenizer.split", "false", found));
                }
                escapes = true;
                let adds = flag(step, "add_prefix_space").unwrap_or(true);
                prefix = match text(step, "prepend_scheme") {
                    Some("always") => SpacePrefix::Always,
                    Some("first") => SpacePrefix::First,
                    Some("never") => SpacePrefix::Never,
                    None if adds => SpacePrefix::Always,
                    None => SpacePrefix::Never,
                    Some(found) => {
                        let wanted = "always, first or never";
                        return Err(Unfollowed::new("pre_tokenizer.prepend_scheme", wanted, found));
                    }
                };
            }
            // No text has a space by then.
            "Split" if step["pattern"]["String"] == " " && escapes => {}
            _ => return Err(Unfollowed::new("pre_tokenizer", "Metaspace", step)),
        }
    }
    if !escapes {
        let wanted = "Replace of spaces, or the pre_tokenizer Metaspace";
        return Err(Unfollowed::new("normalizer", wanted, "neither"));
    }
    Ok(Steps { form, prefix })
}

/// The steps of a vocabulary of bytes, but for the patterns by which words are cut.
pub(super) fn bytes(normalizer: &Json, pre_tokenizer: &Json) -> Result<Steps, Unfollowed> {
    let mut form = None;
    for step in steps(normalizer, "normalizers") {
        match kind(step) {
            name @ ("NFC" | "NFD" | "NFKC" | "NFKD") if form.is_none() => {
                form = Some(name.to_lowercase());
            }
            _ => return Err(Unfollowed::new("normalizer", "NFC, NFD, NFKC or NFKD", step)),
        }
    }
    let (mut splits, mut is_byte_level) = (false, false);
    for step in steps(pre_tokenizer, "pretokenizers") {
        match kind(step) {
            "Split" => {
                splits = true;
                // What is removed where a pattern is inverted is nothing: the patterns take all.
                let isolates = matches!(
                    (text(step, "behavior"), flag(step, "invert").unwrap_or(false)),
                    (Some("Isolated"), false) | (Some("Removed"), true)
                );
                if !isolates || step["pattern"].get("Regex").is_none() {
                    let wanted = "Split by a Regex, Isolated";
                    return Err(Unfollowed::new("pre_tokenizer", wanted, step));
                }
            }
            "Digits" => {}
            "ByteLevel" => {
                is_byte_level = true;
                if flag(step, "add_prefix_space") == Some(true) {
                    return Err(Unfollowed::new("pre_tokenizer.add_prefix_space", "false", true));
                }
                if splits && flag(step, "use_regex") != Some(false) {
                    let wanted = "false behind a Split";
                    return Err(Unfollowed::new("pre_tokenizer.use_regex", wanted, true));
                }
            }
            _ => return Err(Unfollowed::new("pre_tokenizer", "Split, Digits or ByteLevel", step)),
        }
    }
    if !is_byte_level {
        let wanted = "ByteLevel, or a model with byte_fallback";
        return Err(Unfollowed::new("pre_tokenizer", wanted, "neither"));
    }
    Ok(Steps { form, prefix: SpacePrefix::Never })
}

/// The special tokens that a post-processor puts before and behind a text.
pub(super) fn template(post_processor: &Json) -> Result<[Vec<&str>; 2], Unfollowed> {
    let mut around = [Vec::new(), Vec::new()];
    for step in steps(post_processor, "processors") {
        match kind(step) {
            "ByteLevel" => {}
            "TemplateProcessing" => {
                let mut side = 0;
                for piece in step.get("single").and_then(Json::as_array).into_iter().flatten() {
                    match piece["SpecialToken"]["id"].as_str() {
                        Some(token) => around[side].push(token),
                        None => side = 1,
                    }
                }
            }
            _ => {
                let wanted = "TemplateProcessing or ByteLevel";
                return Err(Unfollowed::new("post_processor", wanted, step));
            }
        }
    }
    Ok(around)
}

/// Refuses a decoder that would write tokens as other text.
pub(super) fn check_decoder(decoder: &Json) -> Result<(), Unfollowed> {
    const KNOWN: [&str; 6] = ["ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"];
    match steps(decoder, "decoders").into_iter().find(|step| !KNOWN.contains(&kind(step))) {
        Some(step) => Err(Unfollowed::new("decoder", &KNOWN.join(", "), step)),
        None => Ok(()),
    }
}

//! `tokenizer.json` and what belongs to it, in the keys that a GGUF file has for them.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value as Json;

use crate::gguf::{Array, StrArray, Value};

use super::HfError;
use super::json::Object;
use super::pipeline::{self, SpacePrefix, Steps, Unfollowed};

/// Largest `tokenizer.json`; Gemma's has 33 MB.
const TOKENIZER_BYTES_MAX: u64 = 256 << 20;

/// Longest chat template.
const TEMPLATE_BYTES_MAX: u64 = 1 << 20;

/// Largest vocabulary, as `model` has it.
const VOCAB_MAX: usize = 1 << 20;

/// Kinds of tokens, as in `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// Patterns of byte-level vocabularies, and the names of their pre-tokenizers.
const PATTERNS: [(&str, &str); 5] = [
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "llama-bpe",
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "qwen2",
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "qwen35",
    ),
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "tekken",
    ),
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "gpt-4o",
    ),
];

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Json,
    #[serde(default)]
    pre_tokenizer: Json,
    #[serde(default)]
    post_processor: Json,
    #[serde(default)]
    decoder: Json,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
}

#[derive(Deserialize)]
struct Model {
    vocab: HashMap<String, u32>,
    #[serde(default)]
    merges: Vec<Merge>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    ignore_merges: bool,
    #[serde(default)]
    dropout: Option<f64>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
}

/// A merge, as older and as newer files write it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Text(String),
    Pair(String, String),
}

impl Merge {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Pair(left, right) => format!("{left} {right}"),
        }
    }
}

/// The keys of a folder's tokenizer, its chat template and its way of sampling.
pub(super) fn metadata(folder: &Path, config: &Object) -> Result<Vec<(String, Value)>, HfError> {
    let path = folder.join("tokenizer.json");
    let text = super::read_file(&path, TOKENIZER_BYTES_MAX)?;
    let wrong = |error| HfError::Json { path: path.clone(), error };
    // The kind first: other kinds have other fields, and deserve a better message than that.
    #[derive(Deserialize)]
    struct Kind {
        #[serde(default)]
        r#type: Option<String>,
    }
    #[derive(Deserialize)]
    struct Outer {
        model: Kind,
    }
    let outer: Outer = serde_json::from_slice(&text).map_err(wrong)?;
    let refuse = |key: &str, wanted: &str, found: String| HfError::Value {
        path: path.clone(),
        key: key.to_owned(),
        wanted: wanted.to_owned(),
        found,
    };
    if let Some(kind) = outer.model.r#type.filter(|kind| kind != "BPE") {
        return Err(refuse("model.type", "\"BPE\"", format!("{kind:?}")));
    }
    let mut file: File = serde_json::from_slice(&text).map_err(wrong)?;
    drop(text);
    let settings = Object::read_if_there(&folder.join("tokenizer_config.json"))?;
    take_decoder_flags(&mut file, &settings)?;
    let steps = follow(&file).map_err(|step| refuse(&step.key, &step.wanted, step.found))?;
    let vocab = Vocab::new(&file).map_err(|found| {
        refuse("model.vocab", &format!("ids below {VOCAB_MAX}, each once"), found)
    })?;
    let mut keys = Keys { entries: Vec::new() };
    vocab.write(&file, &steps, &mut keys);
    special_ids(&file, &vocab, &settings, config, &mut keys)?;
    super::generation::read(folder, config, vocab.tokens.len(), &mut keys.entries)?;
    for (name, key) in
        [("default", "tokenizer.chat_template"), ("tool_use", "tokenizer.chat_template.tool_use")]
    {
        let Some(template) = chat_template(folder, &settings, name)? else { continue };
        keys.add(key, template.as_str());
    }
    Ok(keys.entries)
}

/// Flags of added tokens that `tokenizer_config.json` has otherwise: they go first there.
fn take_decoder_flags(file: &mut File, settings: &Object) -> Result<(), HfError> {
    let Some(flags) = settings.opt_object("added_tokens_decoder")? else { return Ok(()) };
    for added in &mut file.added_tokens {
        let Some(own) = flags.opt_object(&added.id.to_string())? else { continue };
        if own.opt_str("content")?.is_some_and(|content| content != added.content) {
            let key = format!("added_tokens_decoder.{}.content", added.id);
            let wanted = format!("{:?}, as in tokenizer.json", added.content);
            return Err(settings.refuse(
                &key,
                &wanted,
                own.opt_str("content")?.unwrap_or_default(),
            ));
        }
        let flag = |key: &str, usual: bool| Ok::<_, HfError>(own.opt_bool(key)?.unwrap_or(usual));
        added.special = flag("special", added.special)?;
        added.single_word = flag("single_word", added.single_word)?;
        added.lstrip = flag("lstrip", added.lstrip)?;
        added.rstrip = flag("rstrip", added.rstrip)?;
        added.normalized = flag("normalized", added.normalized)?;
    }
    Ok(())
}

/// The steps around the vocabulary; refuses what hob does not follow.
fn follow(file: &File) -> Result<Steps, Unfollowed> {
    let model = &file.model;
    if let Some(dropout) = model.dropout.filter(|dropout| *dropout != 0.0) {
        return Err(Unfollowed::new("model.dropout", "null", dropout));
    }
    for (key, part) in [
        ("model.continuing_subword_prefix", &model.continuing_subword_prefix),
        ("model.end_of_word_suffix", &model.end_of_word_suffix),
    ] {
        if let Some(part) = part.as_deref().filter(|part| !part.is_empty()) {
            return Err(Unfollowed::new(key, "null", format!("{part:?}")));
        }
    }
    pipeline::check_decoder(&file.decoder)?;
    let steps = if model.byte_fallback {
        if model.ignore_merges {
            return Err(Unfollowed::new("model.ignore_merges", "false with byte_fallback", true));
        }
        pipeline::escaped(&file.normalizer, &file.pre_tokenizer)?
    } else {
        pipeline::bytes(&file.normalizer, &file.pre_tokenizer)?
    };
    for added in &file.added_tokens {
        let key = |flag: &str| format!("added_tokens.{}.{flag}", added.id);
        if added.single_word {
            return Err(Unfollowed::new(&key("single_word"), "false", true));
        }
        if added.lstrip && added.rstrip {
            return Err(Unfollowed::new(&key("lstrip"), "false beside rstrip", true));
        }
        // It is looked for in text as the normaliser leaves it, which this leaves as it is.
        let is_changed = steps.prefix == SpacePrefix::Everywhere
            || added.content.contains([' ', '▁'])
            || steps.form.is_some() && !added.content.is_ascii();
        if added.normalized && !file.normalizer.is_null() && is_changed {
            return Err(Unfollowed::new(&key("normalized"), "false", true));
        }
    }
    Ok(steps)
}

struct Keys {
    entries: Vec<(String, Value)>,
}

impl Keys {
    fn add(&mut self, key: &str, value: impl Into<Value>) {
        self.entries.push((key.to_owned(), value.into()));
    }
}

/// The tokens by id.
struct Vocab {
    tokens: Vec<Option<String>>,
    types: Vec<i32>,
}

impl Vocab {
    fn new(file: &File) -> Result<Self, String> {
        let added = file.added_tokens.iter().map(|added| (&added.content, added.id));
        let all = file.model.vocab.iter().map(|(text, id)| (text, *id)).chain(added);
        let last = all.clone().map(|(_, id)| id as usize).max().ok_or("no tokens")?;
        if last >= VOCAB_MAX {
            return Err(format!("the id {last}"));
        }
        let mut tokens: Vec<Option<String>> = vec![None; last + 1];
        for (text, id) in all {
            match &mut tokens[id as usize] {
                Some(known) if known != text => {
                    return Err(format!("{known:?} and {text:?} as {id}"));
                }
                place => *place = Some(text.clone()),
            }
        }
        let mut types: Vec<i32> =
            tokens.iter().map(|token| if token.is_some() { NORMAL } else { UNUSED }).collect();
        for added in &file.added_tokens {
            types[added.id as usize] = if added.special { CONTROL } else { USER_DEFINED };
        }
        Ok(Self { tokens, types })
    }

    fn id(&self, text: &str) -> Option<u32> {
        self.tokens.iter().position(|token| token.as_deref() == Some(text)).map(|id| id as u32)
    }

    /// Writes tokens, types, merges or scores, and the kind of tokenizer.
    fn write(&self, file: &File, steps: &Steps, keys: &mut Keys) {
        let mut types = self.types.clone();
        if let Some(form) = &steps.form {
            keys.add("tokenizer.ggml.normalizer", form.as_str());
        }
        keys.add("tokenizer.ggml.ignore_merges", Value::Bool(file.model.ignore_merges));
        let mut strips = vec![0; self.tokens.len()];
        for added in &file.added_tokens {
            strips[added.id as usize] = i32::from(added.lstrip) + 2 * i32::from(added.rstrip);
        }
        keys.add("tokenizer.ggml.token_strips", Value::Array(Array::I32(strips)));
        let names = self.tokens.iter().enumerate().map(|(id, token)| match token {
            Some(text) => text.clone(),
            None => format!("[PAD{id}]"),
        });
        let names: StrArray = names.collect();
        if file.model.byte_fallback {
            for (id, token) in names.iter().enumerate() {
                let is_byte = token.len() == 6 && token.starts_with("<0x") && token.ends_with('>');
                if is_byte {
                    types[id] = BYTE;
                }
            }
            if let Some(id) = file.model.unk_token.as_deref().and_then(|unk| self.id(unk)) {
                types[id as usize] = UNKNOWN;
            }
            keys.add("tokenizer.ggml.model", "llama");
            let puts_space = steps.prefix != SpacePrefix::Never;
            keys.add("tokenizer.ggml.add_space_prefix", Value::Bool(puts_space));
            match steps.prefix {
                SpacePrefix::Always => keys.add("tokenizer.ggml.space_prefix", "always"),
                SpacePrefix::First => keys.add("tokenizer.ggml.space_prefix", "first"),
                SpacePrefix::Everywhere | SpacePrefix::Never => {}
            }
            keys.add("tokenizer.ggml.scores", Value::Array(Array::F32(scores(file, self))));
        } else {
            keys.add("tokenizer.ggml.model", "gpt2");
            keys.add("tokenizer.ggml.pre", pre_tokenizer(file).as_str());
            let merges: StrArray = file.model.merges.iter().map(Merge::text).collect();
            keys.add("tokenizer.ggml.merges", Value::Array(Array::Str(merges)));
        }
        keys.add("tokenizer.ggml.tokens", Value::Array(Array::Str(names)));
        keys.add("tokenizer.ggml.token_type", Value::Array(Array::I32(types)));
    }
}

/// SentencePiece's scores, whose order is that of the merges.
fn scores(file: &File, vocab: &Vocab) -> Vec<f32> {
    let mut ranks: HashMap<String, usize> = HashMap::with_capacity(file.model.merges.len());
    for (rank, merge) in file.model.merges.iter().enumerate() {
        let joined = match merge {
            Merge::Text(text) => text.replacen(' ', "", 1),
            Merge::Pair(left, right) => [left.as_str(), right].concat(),
        };
        ranks.entry(joined).or_insert(rank);
    }
    let last = file.model.merges.len();
    let score = |token: &Option<String>| {
        let rank = token.as_ref().and_then(|token| ranks.get(token)).copied();
        -(rank.unwrap_or(last) as f32)
    };
    vocab.tokens.iter().map(score).collect()
}

/// True if some part of `json` is an object of this type, and holds `with`.
fn has(json: &Json, kind: &str, with: &dyn Fn(&Json) -> bool) -> bool {
    match json {
        Json::Object(fields) => {
            let is = fields.get("type").and_then(Json::as_str) == Some(kind) && with(json);
            is || fields.values().any(|value| has(value, kind, with))
        }
        Json::Array(values) => values.iter().any(|value| has(value, kind, with)),
        _ => false,
    }
}

/// The name of the rule by which words are cut. Patterns that have no name become one that no
/// pre-tokenizer has: it is refused, with the pattern, or falls back where that is allowed.
fn pre_tokenizer(file: &File) -> String {
    let splits = patterns(&file.pre_tokenizer);
    let digits = has(&file.pre_tokenizer, "Digits", &|json| {
        json.get("individual_digits").and_then(Json::as_bool) == Some(true)
    });
    match splits.as_slice() {
        [] if digits => "smollm".to_owned(),
        [] => "gpt-2".to_owned(),
        [one] => {
            let known = PATTERNS.iter().find(|(pattern, _)| pattern == one);
            known.map_or_else(|| format!("pattern {one}"), |(_, name)| (*name).to_owned())
        }
        [numbers, ..] if numbers == r"\p{N}{1,3}" && splits.len() == 3 => "deepseek-v3".to_owned(),
        several => format!("patterns {}", several.join(" ; ")),
    }
}

/// The patterns of all splits, in order.
fn patterns(json: &Json) -> Vec<String> {
    match json {
        Json::Object(fields) if fields.get("type").and_then(Json::as_str) == Some("Split") => {
            let pattern = fields.get("pattern").and_then(|pattern| pattern.get("Regex"));
            pattern.and_then(Json::as_str).map(str::to_owned).into_iter().collect()
        }
        Json::Object(fields) => fields.values().flat_map(patterns).collect(),
        Json::Array(values) => values.iter().flat_map(patterns).collect(),
        _ => Vec::new(),
    }
}

/// The text of a token of the settings, which is a text or an object with one.
fn token_text<'a>(settings: &'a Object, key: &str) -> Option<&'a str> {
    let value = settings.get(key)?;
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// BOS, EOS and the others, and which are added.
fn special_ids(
    file: &File,
    vocab: &Vocab,
    settings: &Object,
    config: &Object,
    keys: &mut Keys,
) -> Result<(), HfError> {
    // The first, where there is a list.
    let first = |id: &Json| id.as_array().map_or(id.as_u64(), |ids| ids.first()?.as_u64());
    let from_config = |key: &str| config.get(key).and_then(first).map(|id| id as u32);
    let inside = |id: &u32| (*id as usize) < vocab.tokens.len();
    let find = |name: &str| {
        let by_text = token_text(settings, &format!("{name}_token")).and_then(|t| vocab.id(t));
        by_text.or_else(|| from_config(&format!("{name}_token_id")).filter(inside))
    };
    let (bos, eos) = (find("bos"), find("eos"));
    let named = [("bos", bos), ("eos", eos), ("padding", find("pad"))];
    for (name, id) in named.into_iter().chain([("unknown", find("unk"))]) {
        if let Some(id) = id {
            keys.add(&format!("tokenizer.ggml.{name}_token_id"), id);
        }
    }
    let class = settings.opt_str("tokenizer_class")?.unwrap_or_default();
    let has_class = ["LlamaTokenizer", "Gemma"].iter().any(|start| class.starts_with(start));
    let [before, behind] = pipeline::template(&file.post_processor).map_err(|step| {
        settings.refuse_in("tokenizer.json", &step.key, &step.wanted, step.found)
    })?;
    let is_one = |tokens: &[&str], wanted: Option<u32>, name: &str| match tokens {
        [] => Ok(false),
        [one] if wanted.is_some() && vocab.id(one) == wanted => Ok(true),
        _ => {
            let wanted = format!("{name} alone, or nothing, on its side of the text");
            let found = format!("{tokens:?}");
            Err(settings.refuse_in("tokenizer.json", "post_processor.single", &wanted, found))
        }
    };
    let (begins, ends) = (is_one(&before, bos, "BOS")?, is_one(&behind, eos, "EOS")?);
    let adds_bos = settings.opt_bool("add_bos_token")?.unwrap_or(begins || has_class);
    keys.add("tokenizer.ggml.add_bos_token", Value::Bool(adds_bos && bos.is_some()));
    let adds_eos = settings.opt_bool("add_eos_token")?.unwrap_or(ends);
    keys.add("tokenizer.ggml.add_eos_token", Value::Bool(adds_eos && eos.is_some()));
    Ok(())
}

/// The template of that name: that of a file of its own, or of the tokenizer's settings.
fn chat_template(folder: &Path, settings: &Object, name: &str) -> Result<Option<String>, HfError> {
    let path = match name {
        "default" => folder.join("chat_template.jinja"),
        _ => folder.join("additional_chat_templates").join(format!("{name}.jinja")),
    };
    if path.exists() {
        let text = super::read_file(&path, TEMPLATE_BYTES_MAX)?;
        let text = String::from_utf8(text).map_err(|error| HfError::Value {
            path: path.clone(),
            key: "the template".to_owned(),
            wanted: "UTF-8".to_owned(),
            found: error.utf8_error().to_string(),
        })?;
        return Ok(Some(text));
    }
    let named = |entry: &Json| {
        (entry.get("name")?.as_str()? == name)
            .then(|| entry.get("template")?.as_str().map(str::to_owned))?
    };
    Ok(match settings.get("chat_template") {
        Some(Json::String(template)) if name == "default" => Some(template.clone()),
        Some(Json::Array(entries)) => entries.iter().find_map(named),
        _ => None,
    })
}

//! What OpenAI's interfaces share: names of fields, the usage, the timings of llama-server.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::conversation::{Finished, Format, Stop, Task};
use super::error::Failure;
use super::fields::{self, Fields, Item, is_text};
use super::scored::Scored;
use crate::chat::JsonObject;
use crate::config::SamplingOverrides;
use crate::protocol::TEMPLATE_JSON_BYTES_MAX;

/// Begins with a letter as that of llama-server, by which some clients know a build.
pub(super) const FINGERPRINT: &str = concat!("b-hob-", env!("CARGO_PKG_VERSION"));

/// Most answers to one prompt.
pub(super) const CHOICES_MAX: usize = 8;

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Reads what chat and plain completions have in common.
pub(super) fn read_common(fields: &Fields<'_>) -> Result<Task, Failure> {
    Ok(Task {
        model: fields.text("model")?,
        sampling: read_sampling(fields)?,
        seed: read_seed(fields)?,
        tokens_max: read_tokens_max(fields)?,
        stop: read_stop(fields, "stop")?,
        ..Task::default()
    })
}

/// How tokens are to be chosen.
pub(super) fn read_sampling(fields: &Fields<'_>) -> Result<SamplingOverrides, Failure> {
    let number = |field| fields.optional::<f32>(field, "a number");
    // llama-server's clients turn top_k off by 0 or by a negative number.
    let top_k = fields.optional::<i64>("top_k", "an integer")?;
    Ok(SamplingOverrides {
        temperature: number("temperature")?,
        top_k: top_k.map(|top_k| u32::try_from(top_k.max(0)).unwrap_or(u32::MAX)),
        top_p: number("top_p")?,
        min_p: number("min_p")?,
        repeat_penalty: number("repeat_penalty")?,
        presence_penalty: number("presence_penalty")?,
        frequency_penalty: number("frequency_penalty")?,
    })
}

/// Any integer of 64 bits; -1 is as good as none.
fn read_seed(fields: &Fields<'_>) -> Result<Option<u64>, Failure> {
    const WANTED: &str = "an integer of 64 bits";
    let Some(raw) = fields.raw("seed") else { return Ok(None) };
    if !raw.get().starts_with('-') {
        return fields.optional("seed", WANTED);
    }
    let seed: Option<i64> = fields.optional("seed", WANTED)?;
    Ok(seed.filter(|seed| *seed != -1).map(i64::cast_unsigned))
}

/// `max_tokens` by any of its names; a negative number is none.
fn read_tokens_max(fields: &Fields<'_>) -> Result<Option<u32>, Failure> {
    for name in ["max_completion_tokens", "max_tokens", "n_predict"] {
        if let Some(found) = fields.optional::<i64>(name, "an integer")? {
            return Ok(u32::try_from(found).ok());
        }
    }
    Ok(None)
}

/// A text, or several; empty ones stop nothing.
pub(super) fn read_stop(fields: &Fields<'_>, field: &str) -> Result<Vec<String>, Failure> {
    const WANTED: &str = "a string or an array of strings";
    let Some(raw) = fields.raw(field) else { return Ok(Vec::new()) };
    let mut texts: Vec<String> = match is_text(raw) {
        true => fields.optional(field, WANTED)?.into_iter().collect(),
        false => fields.required(field, WANTED)?,
    };
    texts.retain(|text| !text.is_empty());
    Ok(texts)
}

pub(super) fn finish_reason(stop: &Stop) -> &'static str {
    match stop {
        Stop::End | Stop::Text(_) => "stop",
        Stop::Length => "length",
        Stop::Calls => "tool_calls",
    }
}

pub(super) fn usage(finished: &Finished) -> Value {
    let Finished { prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, .. } =
        finished;
    json!({
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    })
}

/// As llama-server tells them.
pub(super) fn timings(finished: &Finished) -> Value {
    let prompt_n = finished.prompt_tokens - finished.cached_tokens.min(finished.prompt_tokens);
    let (prompt_ms, predicted_ms) = (finished.timings.prefill_ms, finished.timings.decode_ms);
    let predicted_n = finished.completion_tokens;
    let per = |ms: f64, count: u32| if count == 0 { 0.0 } else { ms / f64::from(count) };
    let rate = |ms: f64, count: u32| if ms > 0.0 { f64::from(count) * 1e3 / ms } else { 0.0 };
    json!({
        "cache_n": finished.cached_tokens,
        "prompt_n": prompt_n,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": per(prompt_ms, prompt_n),
        "prompt_per_second": rate(prompt_ms, prompt_n),
        "predicted_n": predicted_n,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": per(predicted_ms, predicted_n),
        "predicted_per_second": rate(predicted_ms, predicted_n),
        "draft_n": 0,
    })
}

/// Log-probabilities as chat completions tell them. A token that is a part of a character shows
/// U+FFFD, and its true bytes.
pub(super) fn logprobs(scored: &[Scored]) -> Value {
    let one = |bytes: &[u8], logprob: f32| {
        json!({
            "token": String::from_utf8_lossy(bytes),
            "logprob": finite(logprob),
            "bytes": bytes,
        })
    };
    let content = scored.iter().map(|scored| {
        let mut item = one(&scored.bytes, scored.token.logprob);
        let top = scored.token.top.iter().zip(&scored.top_bytes);
        item["top_logprobs"] = top.map(|((_, logprob), bytes)| one(bytes, *logprob)).collect();
        item
    });
    json!({"content": content.collect::<Vec<_>>(), "refusal": null})
}

/// JSON has no infinity: a probability of 0 becomes the least number there is.
pub(super) fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { f32::MIN }
}

/// Values take many times the memory of their text.
pub(super) fn check_size(fields: &Fields<'_>, field: &str) -> Result<(), Failure> {
    match fields.raw(field).map_or(0, |raw| raw.get().len()) {
        bytes if bytes > TEMPLATE_JSON_BYTES_MAX => {
            let wanted = format!("at most {TEMPLATE_JSON_BYTES_MAX} bytes");
            Err(fields.refuse(field, &wanted, bytes))
        }
        _ => Ok(()),
    }
}

/// What the answer has to be.
pub(super) fn read_format(fields: &Fields<'_>) -> Result<Format, Failure> {
    const WANTED: &str = "text, json_object or json_schema";
    let Some(format) = fields.object("response_format")? else { return Ok(Format::Text) };
    check_size(fields, "response_format")?;
    let schema = |fields: &Fields<'_>, field: &str| {
        let raw = fields.raw(field);
        raw.map(|raw| fields::value(raw, &fields.path(field))).transpose()
    };
    let kind: String = format.required("type", WANTED)?;
    match kind.as_str() {
        "text" => Ok(Format::Text),
        "json_object" => {
            Ok(schema(&format, "schema")?.map_or(Format::JsonObject, Format::JsonSchema))
        }
        "json_schema" => {
            let named = format.object("json_schema")?;
            let named = named.ok_or_else(|| format.missing("json_schema", "an object"))?;
            let schema = schema(&named, "schema")?;
            schema.map(Format::JsonSchema).ok_or_else(|| named.missing("schema", "a JSON Schema"))
        }
        _ => Err(format.refuse("type", WANTED, kind)),
    }
}

/// How many answers are wanted.
pub(super) fn read_n(fields: &Fields<'_>) -> Result<usize, Failure> {
    match fields.optional::<usize>("n", "an integer")?.unwrap_or(1) {
        n if (1..=CHOICES_MAX).contains(&n) => Ok(n),
        n => Err(fields.refuse("n", &format!("1 to {CHOICES_MAX}"), n)),
    }
}

pub(super) fn read_include_usage(fields: &Fields<'_>) -> Result<bool, Failure> {
    let options = fields.object("stream_options")?;
    let include = options.map(|options| options.flag("include_usage")).transpose()?;
    Ok(include.flatten().unwrap_or(false))
}

/// The usage of several answers: a prompt counts once for each `n` of them.
pub(super) fn usage_of(ends: &[Finished], n: usize) -> Value {
    let mut sum = Finished::default();
    for (at, end) in ends.iter().enumerate() {
        if at % n == 0 {
            sum.prompt_tokens += end.prompt_tokens;
            sum.cached_tokens += end.cached_tokens;
        }
        sum.completion_tokens += end.completion_tokens;
        sum.reasoning_tokens += end.reasoning_tokens;
    }
    usage(&sum)
}

pub(super) fn tool_name(tool: &JsonObject) -> &str {
    tool.get("function").and_then(|function| function.get("name")?.as_str()).unwrap_or_default()
}

/// Templates write arguments as JSON, so that a JSON text has to become what it stands for.
pub(super) fn parse_arguments(arguments: Value) -> Value {
    let parsed = arguments.as_str().map(serde_json::from_str::<Value>);
    match parsed {
        Some(Ok(parsed @ Value::Object(_))) => parsed,
        Some(_) if arguments.as_str().is_some_and(|text| text.trim().is_empty()) => json!({}),
        _ => arguments,
    }
}

/// The text of a part of a content.
pub(super) fn read_part(part: &Item<'_>) -> Result<String, Failure> {
    if part.is_text() {
        return part.read("a string");
    }
    let part = part.object()?;
    let kind: String = part.required("type", "a string")?;
    match kind.as_str() {
        "text" | "input_text" | "output_text" => part.required("text", "a string"),
        "refusal" => part.required("refusal", "a string"),
        "image_url" | "input_image" => {
            Err(Failure::invalid(part.path("type"), "image input is not supported"))
        }
        "input_audio" => Err(Failure::invalid(part.path("type"), "audio input is not supported")),
        "file" => Err(Failure::invalid(part.path("type"), "file input is not supported")),
        _ => Err(part.refuse("type", "text", kind)),
    }
}

//! Parameters and result of `embed`.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::fields::{Fields, ParamsError};
use super::models::MODEL_WANTED;
use super::params::{OneOrMany, Params};
use super::sessions::{PRIORITY_WANTED, Priority};
use crate::{engine, model};

/// Most texts of one `embed`.
pub const EMBED_TEXTS_MAX: usize = 256;

/// Bytes that a value of an embedding takes in a reply, at most.
pub const EMBED_VALUE_BYTES: usize = 16;

/// Texts to embed: one, or several. Serialised as an array.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "OneOrMany")]
pub struct InputTexts(pub Vec<String>);

impl From<OneOrMany> for InputTexts {
    fn from(texts: OneOrMany) -> Self {
        Self(texts.into_vec())
    }
}

/// Pooling of a text's token rows into one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// The mean of all.
    Mean,
    /// Row of the first token, which represents the whole text.
    Cls,
    /// Row of the last token.
    Last,
}

impl From<Pooling> for model::Pooling {
    fn from(pooling: Pooling) -> Self {
        match pooling {
            Pooling::Mean => Self::Mean,
            Pooling::Cls => Self::First,
            Pooling::Last => Self::Last,
        }
    }
}

impl From<model::Pooling> for Pooling {
    fn from(pooling: model::Pooling) -> Self {
        match pooling {
            model::Pooling::Mean => Self::Mean,
            model::Pooling::First => Self::Cls,
            model::Pooling::Last => Self::Last,
        }
    }
}

/// Parameters of `embed`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EmbedParams {
    /// Model, by name or alias; without it, the daemon's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// One text, or several.
    pub input: InputTexts,
    /// Without it, the model's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pooling: Option<Pooling>,
    /// Make every vector one of length 1. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub normalize: Option<bool>,
    /// Cut texts that are longer than the context; otherwise they are refused. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncate: Option<bool>,
    /// Keep the first values of each vector alone, as models allow that were trained for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dimensions: Option<u32>,
    /// Priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Milliseconds after which it ends with an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
}

impl Params for EmbedParams {
    fn read(params: Option<&RawValue>) -> Result<Self, ParamsError> {
        const KNOWN: &[&str] = &[
            "model",
            "input",
            "pooling",
            "normalize",
            "truncate",
            "dimensions",
            "priority",
            "deadline_ms",
        ];
        let fields = Fields::new(params, KNOWN)?;
        Ok(Self {
            model: fields.optional("model", MODEL_WANTED)?,
            input: fields.required("input", "a string or an array of strings")?,
            pooling: fields.optional("pooling", "\"mean\", \"cls\" or \"last\"")?,
            normalize: fields.optional("normalize", "true or false")?,
            truncate: fields.optional("truncate", "true or false")?,
            dimensions: fields.optional("dimensions", "an integer from 1")?,
            priority: fields.optional("priority", PRIORITY_WANTED)?,
            deadline_ms: fields.optional("deadline_ms", "an integer from 1")?,
        })
    }
}

/// Result for one text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextEmbedding {
    /// Embedding vector.
    pub embedding: Vec<f32>,
    /// Tokens that it was made of, those that the model wants around a text included.
    pub tokens: u32,
    /// True if the text was longer than the context, and its end was left out.
    pub truncated: bool,
}

/// Timings of an `embed`, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EmbedTimings {
    /// From arrival to the first step it was part of.
    pub queue_ms: f64,
    /// From then to the end.
    pub compute_ms: f64,
    /// Part of that spent in device steps that included it.
    pub device_ms: f64,
    /// Number of those steps.
    pub steps: u64,
}

/// Result of `embed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EmbedResult {
    /// One for each text, in order.
    pub embeddings: Vec<TextEmbedding>,
    /// Pooling that was used.
    pub pooling: Pooling,
    /// Values of each vector.
    pub dimensions: u32,
    /// Tokens of all texts.
    pub prompt_tokens: u64,
    /// Time it took.
    pub timings: EmbedTimings,
}

impl From<&engine::EmbedResult> for EmbedTimings {
    fn from(result: &engine::EmbedResult) -> Self {
        Self {
            queue_ms: result.queue_ms,
            compute_ms: result.compute_ms,
            device_ms: result.device_ms,
            steps: result.steps,
        }
    }
}

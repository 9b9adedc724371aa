//! `POST /v1/embeddings`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::call::Call;
use super::caller::Loading;
use super::embedding::{self, Input, Task};
use super::error::{Failure, Shape};
use super::fields::{self, Fields};
use super::reply::Reply;
use super::router::{Route, Verb};

pub(super) const ROUTES: &[Route] =
    &[Route::new(Verb::Post, &["/v1/embeddings"], Shape::OpenAi, |call| Box::pin(embed(call)))];

async fn embed(call: Call) -> Result<Reply, Failure> {
    let (task, base64) = {
        let fields = call.json()?;
        let task = Task {
            model: fields.text("model")?,
            loading: Loading::Briefly,
            input: read_input(&fields)?,
            dimensions: fields.optional("dimensions", "an integer from 1")?,
            normalised: true,
            truncate: false,
        };
        (task, read_encoding(&fields)?)
    };
    let embedded = embedding::embed(&call.caller, task).await?;
    let one = |(index, vector): (usize, &Vec<f32>)| {
        let vector: Value = match base64 {
            true => STANDARD.encode(bytes(vector)).into(),
            false => vector.as_slice().into(),
        };
        json!({"object": "embedding", "index": index, "embedding": vector})
    };
    let data: Vec<Value> = embedded.vectors.iter().enumerate().map(one).collect();
    let tokens = embedded.prompt_tokens;
    Ok(Reply::json(&json!({
        "object": "list",
        "data": data,
        "model": embedded.model.name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })))
}

fn read_encoding(fields: &Fields<'_>) -> Result<bool, Failure> {
    match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => Ok(false),
        Some("base64") => Ok(true),
        Some(other) => Err(fields.refuse("encoding_format", "float or base64", other)),
    }
}

/// A text, token ids, or an array of either.
pub(super) fn read_input(fields: &Fields<'_>) -> Result<Input, Failure> {
    const WANTED: &str = "a string, an array of strings, of token ids, or of arrays of token ids";
    let raw = fields.raw("input").ok_or_else(|| fields.missing("input", WANTED))?;
    if fields::is_text(raw) {
        return Ok(Input::Texts(vec![fields.required("input", WANTED)?]));
    }
    if !fields::is_array(raw) {
        return Err(fields.refuse("input", WANTED, fields::describe(raw)));
    }
    let items = fields.list("input")?.unwrap_or_default();
    Ok(match items.first() {
        Some(first) if first.is_number() => Input::Tokens(vec![fields.required("input", WANTED)?]),
        Some(first) if !first.is_text() => Input::Tokens(fields.required("input", WANTED)?),
        _ => Input::Texts(fields.required("input", WANTED)?),
    })
}

/// The values, each in four bytes, the lowest first.
fn bytes(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_in_base_64_have_the_lowest_byte_first() {
        assert_eq!(STANDARD.encode(bytes(&[1.0, -2.0])), "AACAPwAAAMA=");
    }
}

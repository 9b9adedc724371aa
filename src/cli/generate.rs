//! One generation, streamed to stdout: what `hob run` and `hob chat` share.

use super::args::SamplingOptions;
use super::client::{Client, ClientError};
use super::interrupt::Interrupts;
use super::output::Output;
use super::{CliError, output};
use crate::protocol::{
    ErrorCode, FinishReason, GenerateParams, GenerateResult, Lora, Priority, SessionCreateParams,
    SessionCreateResult, StopTexts, method,
};

/// Parameters of a generation without its prompt.
pub(crate) fn params(sampling: &SamplingOptions) -> GenerateParams {
    let stop = (!sampling.stop.is_empty()).then(|| StopTexts(sampling.stop.clone()));
    GenerateParams {
        max_tokens: sampling.max_tokens,
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repeat_penalty: sampling.repeat_penalty,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        seed: sampling.seed,
        stop,
        // Somebody waits for it.
        priority: Some(Priority::Interactive),
        ..GenerateParams::default()
    }
}

/// Creates a session of this name unless it is there.
pub(crate) fn ensure_session(
    client: &mut Client,
    name: &str,
    model: Option<String>,
    lora: Option<Vec<Lora>>,
) -> Result<(), CliError> {
    let name = Some(name.to_owned());
    let params = SessionCreateParams { name, model, lora, ..Default::default() };
    let created: Result<SessionCreateResult, ClientError> =
        client.call(method::SESSION_CREATE, &params);
    match created {
        Ok(_) => Ok(()),
        Err(ClientError::Refused { error }) if error.code == ErrorCode::SESSION_EXISTS => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Generates and writes the text as it comes; its last line is ended where it was not.
///
/// # Errors
/// What was written stays. A closed stdout cancels the generation.
pub(crate) fn stream(
    client: &mut Client,
    params: GenerateParams,
    interrupts: &Interrupts,
    output: &mut Output,
) -> Result<GenerateResult, CliError> {
    let params = GenerateParams { stream: Some(true), ..params };
    let mut written = 0;
    let waiting = output::spinner("{spinner} waiting for the first word ({elapsed})");
    let result = client.generate(&params, interrupts, |token| {
        if written == 0 {
            waiting.finish_and_clear();
        }
        written += token.text.len();
        output.text(&token.text)
    });
    waiting.finish_and_clear();
    if let Err(error @ CliError::Stdout { .. }) = result {
        return Err(error);
    }
    // Text that was held back, as the beginning of a stop text or of a character may be, comes with
    // the result alone.
    let rest = result.as_ref().ok().and_then(|result| result.text.get(written..));
    output.text(rest.unwrap_or_default())?;
    if !output.ends_line() {
        output.line("")?;
    }
    finished(result?)
}

/// Generates without streaming.
pub(crate) fn whole(
    client: &mut Client,
    params: &GenerateParams,
    interrupts: &Interrupts,
) -> Result<GenerateResult, CliError> {
    client.generate(params, interrupts, |_| Ok(()))
}

/// The result, unless the engine failed.
pub(crate) fn finished(result: GenerateResult) -> Result<GenerateResult, CliError> {
    if result.finish_reason == FinishReason::Error {
        let reason = result.error.unwrap_or_else(|| "hobd does not say why".into());
        return Err(CliError::Generation { reason });
    }
    Ok(result)
}

/// Token counts and rates of a generation, one line a phase.
pub(crate) fn statistics(result: &GenerateResult) -> String {
    let (usage, timings) = (&result.usage, &result.timings);
    let evaluated = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
    let mut lines = vec![format!(
        "prompt     {} tokens, {} from the cache, {} evaluated in {}",
        usage.prompt_tokens,
        usage.cached_tokens,
        evaluated,
        duration_and_rate(evaluated, timings.prefill_ms)
    )];
    // The first token comes out of the prompt's evaluation.
    let decoded = usage.completion_tokens.saturating_sub(1);
    lines.push(format!(
        "generated  {} tokens, {}",
        usage.completion_tokens,
        duration_and_rate(decoded, timings.decode_ms)
    ));
    lines.push(format!("queued     {:.0} ms", timings.queue_ms));
    lines.join("\n")
}

fn duration_and_rate(tokens: u32, ms: f64) -> String {
    if tokens == 0 || ms <= 0.0 {
        return format!("{ms:.0} ms");
    }
    format!("{ms:.0} ms ({:.1} tokens/s)", f64::from(tokens) * 1000.0 / ms)
}

/// Says on stderr why a text ends early, where a reader could think it complete.
pub(crate) fn note_early_end(result: &GenerateResult) {
    match result.finish_reason {
        FinishReason::Cancelled => {
            output::note(&result.error.as_deref().unwrap_or("cancelled"));
        }
        FinishReason::Deadline => output::note(&"out of time"),
        FinishReason::Length => output::note(&format_args!(
            "stopped after {} tokens; --max-tokens sets the limit, the context's end is one too",
            result.usage.completion_tokens
        )),
        FinishReason::Stop | FinishReason::Error => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Timings, Usage};

    #[test]
    fn rates_count_what_was_computed() {
        let result = GenerateResult {
            text: String::new(),
            tokens: vec![0; 11],
            finish_reason: FinishReason::Stop,
            error: None,
            usage: Usage { prompt_tokens: 110, cached_tokens: 10, completion_tokens: 11 },
            timings: Timings {
                queue_ms: 1.0,
                prefill_ms: 500.0,
                decode_ms: 2000.0,
                ..Timings::default()
            },
            shifted: None,
            logprobs: None,
            prompt_logprobs: None,
        };
        assert_eq!(
            statistics(&result),
            "prompt     110 tokens, 10 from the cache, 100 evaluated in 500 ms (200.0 tokens/s)\n\
             generated  11 tokens, 2000 ms (5.0 tokens/s)\n\
             queued     1 ms"
        );
    }
}

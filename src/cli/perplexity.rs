//! `hob perplexity`: how well a model predicts a text.
//!
//! The method is that of llama.cpp's `llama-perplexity`, so that figures compare: chunks of
//! `context` tokens, each evaluated from an empty context with its first token replaced by BOS
//! where the model adds one; the tokens behind the middle are scored.

use std::path::Path;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use super::args::{KvDtype, PerplexityOptions};
use super::local::{LocalError, LocalModel, LocalOptions, open_local};
use super::output::Output;
use super::table::Facts;
use super::{CliError, exit, paths};

/// Logits rows asked for at once: with a vocabulary of 262,144 they take 64 MiB.
const ROWS_MAX: usize = 64;

/// The least chunks a text must have, as in llama.cpp: fewer say little.
const CHUNKS_MIN: usize = 2;

pub(crate) fn run(options: &PerplexityOptions) -> Result<u8, CliError> {
    let text = read_text(&options.file)?;
    let mut model = open_local(&LocalOptions {
        model: paths::model(&options.model)?,
        device: options.device.clone(),
        kv_dtype: KvDtype::setting(options.kv_dtype),
        context_tokens: options.context,
        numerics: options.numerics.into(),
    })?;
    let tokens = model.tokenizer().encode(&text, true, false)?;
    let context = options.context as usize;
    let wanted = CHUNKS_MIN * context;
    if tokens.len() < wanted {
        return Err(CliError::TextTooShort { tokens: tokens.len(), context, wanted });
    }
    let tokenizer = model.tokenizer();
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let chunks = (tokens.len() / context).min(options.chunks.map_or(usize::MAX, |n| n as usize));
    let progress = progress_bar(chunks);
    let mut score = Score::default();
    for chunk in tokens.chunks_exact(context).take(chunks) {
        score_chunk(model.as_mut(), chunk, bos, &mut score)?;
        progress.set_message(format!("perplexity {:.4}", score.perplexity()));
        progress.inc(1);
    }
    progress.finish_and_clear();
    let report = Report {
        perplexity: score.perplexity(),
        uncertainty: score.uncertainty(),
        chunks,
        context,
        scored_tokens: score.count,
        model: options.model.display().to_string(),
        device: model.device(),
    };
    report.write(options.json)?;
    Ok(exit::DONE)
}

/// The file's text but for the newline that ends it, as llama.cpp reads prompts.
fn read_text(path: &Path) -> Result<String, CliError> {
    let mut text = paths::read_text(path)?;
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(text)
}

fn progress_bar(chunks: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} chunks, {eta} left, {msg}");
    // The draw target is hidden where stderr is not a terminal.
    ProgressBar::with_draw_target(Some(chunks as u64), ProgressDrawTarget::stderr())
        .with_style(style.expect("the template is constant and well formed"))
}

/// Adds the tokens behind the chunk's middle to `score`.
fn score_chunk(
    model: &mut dyn LocalModel,
    chunk: &[u32],
    bos: Option<u32>,
    score: &mut Score,
) -> Result<(), LocalError> {
    let mut input = chunk.to_vec();
    if let (Some(first), Some(bos)) = (input.first_mut(), bos) {
        *first = bos;
    }
    model.reset()?;
    let middle = input.len() / 2;
    model.evaluate(&input[..middle], &vec![false; middle])?;
    // The last token predicts one of the next chunk, so it is not evaluated.
    let predicting = &input[middle..input.len() - 1];
    let predicted = &chunk[middle + 1..];
    for (tokens, targets) in predicting.chunks(ROWS_MAX).zip(predicted.chunks(ROWS_MAX)) {
        let rows = model.evaluate(tokens, &vec![true; tokens.len()])?;
        for (row, &target) in rows.iter().zip(targets) {
            score.add(-log_probability(row, target));
        }
    }
    Ok(())
}

/// Natural-log probability of `token` by the softmax of `logits`.
fn log_probability(logits: &[f32], token: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
    f64::from(logits[token as usize] - max) - sum.ln()
}

/// Sums over the scored tokens.
#[derive(Debug, Default)]
struct Score {
    count: usize,
    sum: f64,
    sum_of_squares: f64,
}

impl Score {
    fn add(&mut self, negative_log_probability: f64) {
        self.count += 1;
        self.sum += negative_log_probability;
        self.sum_of_squares += negative_log_probability * negative_log_probability;
    }

    fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }

    fn perplexity(&self) -> f64 {
        self.mean().exp()
    }

    /// Standard error of the perplexity, by that of the mean.
    fn uncertainty(&self) -> f64 {
        let variance = self.sum_of_squares / self.count as f64 - self.mean().powi(2);
        let error = (variance.max(0.0) / (self.count as f64 - 1.0).max(1.0)).sqrt();
        error * self.perplexity()
    }
}

#[derive(Debug, Serialize)]
struct Report {
    perplexity: f64,
    uncertainty: f64,
    chunks: usize,
    context: usize,
    scored_tokens: usize,
    model: String,
    device: String,
}

impl Report {
    fn write(&self, json: bool) -> Result<(), CliError> {
        let mut output = Output::stdout();
        if json {
            return output.json(self);
        }
        let mut facts = Facts::default();
        let figure = format!("{:.4} ± {:.4}", self.perplexity, self.uncertainty);
        facts.add("perplexity", figure);
        facts.add(
            "scored",
            format!("{} tokens in {} chunks of {}", self.scored_tokens, self.chunks, self.context),
        );
        facts.add("model", &self.model);
        facts.add("device", &self.device);
        facts.write(&mut output)
    }
}

#[cfg(test)]
mod tests {
    use super::super::local::fake::FakeModel;
    use super::*;

    fn scored(chunk: &[u32], bos: Option<u32>) -> (Score, FakeModel) {
        let mut model = FakeModel::new(8);
        let mut score = Score::default();
        score_chunk(&mut model, chunk, bos, &mut score).unwrap();
        (score, model)
    }

    #[test]
    fn a_text_as_predicted_has_the_perplexity_of_the_prediction() {
        // The fake gives the successor of a token e times the weight of each of the 7 others.
        let chunk: Vec<u32> = (0..16).map(|n| n % 8).collect();
        let (score, _) = scored(&chunk, None);
        let probability = 1f64.exp() / (1f64.exp() + 7.0);
        assert_eq!(score.count, 7);
        assert!((score.perplexity() - 1.0 / probability).abs() < 1e-6);
        assert!(score.uncertainty() < 1e-6);
    }

    #[test]
    fn uniform_surprise_is_counted_where_the_prediction_fails() {
        let (score, _) = scored(&[3; 8], None);
        assert!((score.perplexity() - (1f64.exp() + 7.0)).abs() < 1e-6);
    }

    #[test]
    fn bos_replaces_the_first_token_and_the_last_is_not_evaluated() {
        let (_, model) = scored(&[1, 2, 3, 4, 5, 6], Some(7));
        assert_eq!(model.context, [7, 2, 3, 4, 5]);
        assert_eq!(model.resets, 1);
    }

    #[test]
    fn long_chunks_are_scored_in_pieces() {
        let chunk: Vec<u32> = (0..512).map(|n| n % 8).collect();
        let (score, model) = scored(&chunk, None);
        assert_eq!(score.count, 255);
        assert_eq!(model.context.len(), 511);
        assert!(model.rows_at_once_max <= ROWS_MAX);
    }

    #[test]
    fn log_probabilities_do_not_overflow() {
        let log_p = log_probability(&[1000.0, 0.0, -1000.0], 1);
        assert!((log_p + 1000.0).abs() < 1e-9);
    }
}

//! Grammars and biases of a request: read, checked and compiled before the engine hears of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::methods::out_of_range;
use crate::engine::{AdmitError, CancelFlag, Constraints, EngineHandle};
use crate::grammar::{Grammar, GrammarError, GrammarKind, GrammarSource};
use crate::protocol::{ErrorCode, ErrorObject, GenerateParams, GrammarParams, LogitBias};

/// Longest that a grammar may take to compile, the wait for a thread included.
const COMPILE_TIME_MAX: Duration = Duration::from_secs(10);

/// Tokens with a bias.
const BIASES_MAX: usize = 1024;

/// A bias that forbids its token, as OpenAI has it, and the highest.
const BIAS_MAX: f32 = 100.0;

/// A grammar of a request, and the field that it stands in.
pub(super) type FieldGrammar = (&'static str, GrammarSource);

/// What a request says of its form.
pub(super) fn read_grammar(params: &GenerateParams) -> Result<Option<FieldGrammar>, ErrorObject> {
    match (&params.grammar, &params.json_schema) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => {
            Err(out_of_range("json_schema", "one of grammar and json_schema", "both"))
        }
        (None, Some(schema)) => {
            let source = GrammarSource::new(GrammarKind::JsonSchema, schema.0.get());
            Ok(Some(("json_schema", source)))
        }
        (Some(grammar), None) => Ok(Some(("grammar", one_grammar(grammar)?))),
    }
}

fn one_grammar(grammar: &GrammarParams) -> Result<GrammarSource, ErrorObject> {
    let GrammarParams { kind, text, root } = grammar;
    let known = GrammarKind::ALL.map(GrammarKind::name).join(", ");
    let kind = GrammarKind::named(kind)
        .ok_or_else(|| out_of_range("grammar", format!("a kind of {known}"), kind))?;
    if root.is_some() && kind != GrammarKind::Gbnf {
        return Err(out_of_range("grammar", "root with kind gbnf alone", kind.name()));
    }
    let text = match (text, kind) {
        (Some(text), _) => text.clone(),
        (None, GrammarKind::JsonObject) => String::new(),
        (None, _) => return Err(out_of_range("grammar", "a text", "none")),
    };
    Ok(GrammarSource { root: root.clone(), ..GrammarSource::new(kind, text) })
}

/// Biases of tokens, each once, and tokens that are forbidden.
pub(super) fn read_bias(bias: Option<LogitBias>) -> Result<Constraints, ErrorObject> {
    let LogitBias(pairs) = bias.unwrap_or_default();
    if pairs.len() > BIASES_MAX {
        let wanted = format!("at most {BIASES_MAX} tokens");
        return Err(out_of_range("logit_bias", wanted, pairs.len()));
    }
    let mut constraints = Constraints::default();
    let mut seen = BTreeSet::new();
    for (token, bias) in pairs {
        if !seen.insert(token) {
            return Err(out_of_range("logit_bias", "each token once", format!("{token} twice")));
        }
        match bias {
            Some(bias) if !(-BIAS_MAX..=BIAS_MAX).contains(&bias) => {
                let wanted = format!("biases of -{BIAS_MAX} to {BIAS_MAX}");
                return Err(out_of_range("logit_bias", wanted, bias));
            }
            Some(bias) if bias > -BIAS_MAX => constraints.bias.push((token, bias)),
            _ => constraints.forbidden.push(token),
        }
    }
    Ok(constraints)
}

/// Compiles a grammar for a user, if there is one, on threads that are there for it.
///
/// # Errors
/// What is wrong with the grammar, as a bad field of the parameters.
pub(super) async fn compile(
    engine: &EngineHandle,
    uid: u32,
    grammar: Option<FieldGrammar>,
    cancel: &CancelFlag,
) -> Result<Option<Arc<Grammar>>, ErrorObject> {
    let Some((field, source)) = grammar else { return Ok(None) };
    let kind = source.kind.title();
    let (reply, answer) = oneshot::channel();
    let waits = cancel.clone();
    engine.grammars.start(
        uid,
        source,
        move || !waits.is_raised(),
        move |made| {
            let _ = reply.send(made); // nobody waits for it any longer
        },
    );
    let made = tokio::select! {
        made = answer => made,
        () = cancel.raised() => return Err(AdmitError::Cancelled.into()),
        () = tokio::time::sleep(COMPILE_TIME_MAX) => {
            let limit_ms = COMPILE_TIME_MAX.as_millis();
            return Err(grammar_refused(field, &GrammarError::TooSlow { kind, limit_ms }));
        }
    };
    match made {
        Ok(made) => made.map(Some).map_err(|error| grammar_refused(field, &error)),
        Err(_) => Err(AdmitError::Cancelled.into()), // it was dropped, since nobody wanted it
    }
}

fn grammar_refused(field: &'static str, error: &GrammarError) -> ErrorObject {
    let code = match error {
        GrammarError::QueueFull { .. } => ErrorCode::USER_QUEUE_FULL,
        _ => ErrorCode::INVALID_PARAMS,
    };
    let mut refusal = ErrorObject::new(code, error.to_string());
    refusal.data = Some(serde_json::json!({"field": field}));
    refusal
}

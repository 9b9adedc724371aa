//! `POST /v1/completions`.

use serde_json::{Map, Value, json};

use super::call::{Call, fresh_id};
use super::conversation::{self, Event, Finished, Input, Prepared, Running, Task};
use super::error::{Failure, Shape};
use super::fields::{self, Fields};
use super::openai::{self, CHOICES_MAX, FINGERPRINT, finite};
use super::reply::{Gone, Reply, Sink};
use super::router::{Route, Verb};
use super::scored::{Scored, scored as scored_of};
use crate::server::text;

pub(super) const ROUTES: &[Route] =
    &[Route::new(Verb::Post, &["/v1/completions"], Shape::OpenAi, |call| Box::pin(complete(call)))];

/// Most prompts of one request.
const PROMPTS_MAX: usize = 64;

async fn complete(call: Call) -> Result<Reply, Failure> {
    let (form, task, prompts) = {
        let fields = call.json()?;
        let form = Form::read(&fields)?;
        (form, read_task(&fields, form)?, read_prompts(&fields)?)
    };
    let mut answers = Vec::with_capacity(prompts.len() * form.n);
    for input in prompts {
        let sent = match &input {
            Input::Text(text) if form.echo => Some(text.clone()),
            _ => None,
        };
        let task = Task { input, ..task.clone() };
        let prepared = conversation::prepare(&call.caller, task).await?;
        answers.extend(start(&call, form, prepared, sent).await?);
    }
    let model = answers.first().map(|answer| answer.running.model.name.clone());
    let head =
        Head { id: fresh_id("cmpl-"), created: openai::now(), model: model.unwrap_or_default() };
    match form.stream {
        true => {
            let id = call.id.clone();
            Ok(call.events(move |sink| stream(sink, answers, head, form, id)))
        }
        false => Ok(Reply::json(&whole(answers, &head, form).await?)),
    }
}

/// One choice.
struct Answer {
    running: Running,
    echo: String,
    /// The prompt's tokens, where they are to be told: without a begin token that was not sent.
    prompt: Vec<u32>,
}

async fn start(
    call: &Call,
    form: Form,
    prepared: Prepared,
    sent: Option<String>,
) -> Result<Vec<Answer>, Failure> {
    let mut prompt = if form.echo { prepared.tokens.clone() } else { Vec::new() };
    let echo = match sent {
        Some(text) => {
            if prepared.model.tokenizer.bos().is_some_and(|bos| prompt.first() == Some(&bos)) {
                prompt.remove(0);
            }
            text
        }
        None if form.echo => {
            let job = call.caller.host.job(call.caller.owner);
            text::decode(&job, &prepared.model, prompt.clone()).await?
        }
        None => String::new(),
    };
    let runnings = prepared.start_many(&call.caller, form.n).await?;
    let answer = |running| Answer { running, echo: echo.clone(), prompt: prompt.clone() };
    Ok(runnings.into_iter().map(answer).collect())
}

/// How the answer is to be told.
#[derive(Clone, Copy, Debug)]
struct Form {
    stream: bool,
    include_usage: bool,
    echo: bool,
    logprobs: Option<u32>,
    n: usize,
}

impl Form {
    fn read(fields: &Fields<'_>) -> Result<Self, Failure> {
        let n = openai::read_n(fields)?;
        if let Some(best) = fields.optional::<usize>("best_of", "an integer")?
            && best != n
        {
            return Err(fields.refuse("best_of", "as many as n", best));
        }
        Ok(Self {
            stream: fields.flag("stream")?.unwrap_or(false),
            include_usage: openai::read_include_usage(fields)?,
            echo: fields.flag("echo")?.unwrap_or(false),
            logprobs: read_logprobs(fields)?,
            n,
        })
    }
}

/// A number; `true` and `false` come from clients that mean chat's.
fn read_logprobs(fields: &Fields<'_>) -> Result<Option<u32>, Failure> {
    match fields.raw("logprobs").map(|raw| raw.get()) {
        None | Some("false") => Ok(None),
        Some("true") => Ok(Some(1)),
        Some(_) => fields.optional("logprobs", "an integer from 0 to 20"),
    }
}

fn read_task(fields: &Fields<'_>, form: Form) -> Result<Task, Failure> {
    if let Some(suffix) = fields.text("suffix")?
        && !suffix.is_empty()
    {
        let model = fields.text("model")?.unwrap_or_default();
        return Err(Failure::invalid("suffix", format!("{model:?} does not support insert")));
    }
    Ok(Task {
        logprobs: form.logprobs,
        prompt_logprobs: form.logprobs.filter(|_| form.echo),
        format: openai::read_format(fields)?,
        ..openai::read_common(fields)?
    })
}

/// A text, token ids, or an array of either.
fn read_prompts(fields: &Fields<'_>) -> Result<Vec<Input>, Failure> {
    const WANTED: &str = "a string, an array of strings, of token ids, or of arrays of token ids";
    let raw = fields.raw("prompt").ok_or_else(|| fields.missing("prompt", WANTED))?;
    let prompts = if fields::is_text(raw) {
        vec![Input::Text(fields.required("prompt", WANTED)?)]
    } else {
        let items: Vec<fields::Item<'_>> = match fields::is_array(raw) {
            true => fields.list("prompt")?.unwrap_or_default(),
            false => return Err(fields.refuse("prompt", WANTED, fields::describe(raw))),
        };
        match items.first() {
            None => return Err(fields.refuse("prompt", "at least one", "none")),
            Some(first) if first.is_number() => {
                vec![Input::Tokens(fields.required("prompt", WANTED)?)]
            }
            Some(_) => {
                let one = |item: &fields::Item<'_>| match item.is_text() {
                    true => item.read("a string").map(Input::Text),
                    false => item.read("a string or an array of token ids").map(Input::Tokens),
                };
                items.iter().map(one).collect::<Result<_, _>>()?
            }
        }
    };
    match prompts.len() * openai::read_n(fields)? {
        count if prompts.len() > PROMPTS_MAX || count > PROMPTS_MAX * CHOICES_MAX => {
            Err(fields.refuse("prompt", &format!("at most {PROMPTS_MAX} prompts"), prompts.len()))
        }
        _ => Ok(prompts),
    }
}

struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    fn object(&self, choices: Value) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("id".to_owned(), self.id.as_str().into());
        map.insert("object".to_owned(), "text_completion".into());
        map.insert("created".to_owned(), self.created.into());
        map.insert("model".to_owned(), self.model.as_str().into());
        map.insert("system_fingerprint".to_owned(), FINGERPRINT.into());
        map.insert("choices".to_owned(), choices);
        map
    }

    fn chunk(&self, index: usize, text: &str, logprobs: Value, reason: Value) -> Value {
        let choice = json!({
            "text": text,
            "index": index,
            "logprobs": logprobs,
            "finish_reason": reason,
        });
        self.object(json!([choice])).into()
    }
}

async fn whole(answers: Vec<Answer>, head: &Head, form: Form) -> Result<Value, Failure> {
    let mut choices = Vec::with_capacity(answers.len());
    let mut ends = Vec::with_capacity(answers.len());
    for (index, answer) in answers.into_iter().enumerate() {
        let model = answer.running.model.clone();
        let whole = answer.running.collect().await?;
        let mut legacy = Legacy::default();
        legacy.add_prompt(&model, &answer.prompt, &whole.finished);
        legacy.add(&whole.scored);
        choices.push(json!({
            "text": answer.echo + &whole.content,
            "index": index,
            "logprobs": form.logprobs.map(|_| legacy.value()),
            "finish_reason": openai::finish_reason(&whole.finished.stop),
        }));
        ends.push(whole.finished);
    }
    let mut object = head.object(choices.into());
    object.insert("usage".to_owned(), openai::usage_of(&ends, form.n));
    if let [finished] = &ends[..] {
        object.insert("timings".to_owned(), openai::timings(finished));
    }
    Ok(object.into())
}

/// One choice after the other; the engine works on all of them meanwhile.
async fn stream(
    mut sink: Sink,
    answers: Vec<Answer>,
    head: Head,
    form: Form,
    request_id: String,
) -> Result<(), Gone> {
    let mut ends: Vec<Finished> = Vec::with_capacity(answers.len());
    for (index, mut answer) in answers.into_iter().enumerate() {
        let mut legacy = Legacy::default();
        if !answer.echo.is_empty() {
            sink.data(&head.chunk(index, &answer.echo, Value::Null, Value::Null))?;
            legacy.offset = answer.echo.chars().count();
        }
        while let Some(event) = answer.running.next().await {
            match event {
                Err(failure) => return sink.data(&failure.value(Shape::OpenAi, &request_id)),
                Ok(Event::Content { text, scored }) => {
                    legacy.add(&scored);
                    let logprobs = form.logprobs.map(|_| legacy.take()).unwrap_or_default();
                    sink.data(&head.chunk(index, &text, logprobs, Value::Null))?;
                }
                Ok(Event::Finished(finished)) => {
                    let reason = openai::finish_reason(&finished.stop).into();
                    sink.data(&head.chunk(index, "", Value::Null, reason))?;
                    ends.push(*finished);
                }
                Ok(_) => {}
            }
        }
    }
    if form.include_usage {
        let mut usage = head.object(json!([]));
        usage.insert("usage".to_owned(), openai::usage_of(&ends, form.n));
        sink.data(&usage)?;
    }
    sink.done()
}

/// Log-probabilities as completions tell them.
#[derive(Debug, Default)]
struct Legacy {
    tokens: Vec<Value>,
    logprobs: Vec<Value>,
    top: Vec<Value>,
    offsets: Vec<usize>,
    /// Characters so far.
    offset: usize,
}

impl Legacy {
    fn push(&mut self, token: &str, logprob: Value, top: Value) {
        self.offsets.push(self.offset);
        self.offset += token.chars().count();
        self.tokens.push(token.into());
        self.logprobs.push(logprob);
        self.top.push(top);
    }

    fn add(&mut self, scored: &[Scored]) {
        for scored in scored {
            let top = scored.token.top.iter().zip(&scored.top_bytes);
            let top: Map<String, Value> = top
                .map(|((_, logprob), bytes)| {
                    (String::from_utf8_lossy(bytes).into_owned(), finite(*logprob).into())
                })
                .collect();
            let token = String::from_utf8_lossy(&scored.bytes);
            self.push(&token, finite(scored.token.logprob).into(), top.into());
        }
    }

    /// The prompt's tokens, of which the first has none.
    fn add_prompt(&mut self, model: &crate::server::InUse, prompt: &[u32], finished: &Finished) {
        let Some(first) = prompt.first() else { return };
        let bytes = model.tokenizer.token_bytes(*first).unwrap_or_default();
        self.push(&String::from_utf8_lossy(&bytes), Value::Null, Value::Null);
        // One behind each token but the first of all, which may not be among these.
        let others = (finished.prompt_tokens as usize).saturating_sub(prompt.len());
        let rest = finished.prompt_logprobs.iter().flatten().skip(others);
        let rest: Vec<Scored> = rest.map(|token| scored_of(model, token.clone())).collect();
        self.add(&rest);
    }

    fn value(&self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.logprobs,
            "top_logprobs": self.top,
            "text_offset": self.offsets,
        })
    }

    /// What was added since the last time.
    fn take(&mut self) -> Value {
        let value = self.value();
        *self = Self { offset: self.offset, ..Self::default() };
        value
    }
}

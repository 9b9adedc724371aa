//! Embeddings through the engine: alone and batched to the same bits, beside those who generate,
//! within quotas, and given up when their caller does.
#![allow(clippy::unwrap_used)]

mod common;
mod engine_support;
#[path = "common/random.rs"]
mod random;
#[path = "idea/tiny.rs"]
mod tiny;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{Driven, Sizes, encoder};
use engine_support::{Engine, OWNER, finish, prompt, request};
use hob::engine::{
    self, AdmitError, CancelFlag, EmbedRequest, EmbedResult, EngineCommand, EngineEvent,
    EngineOptions, Priority, Quota, Quotas,
};
use hob::kernels::KvFormat;
use hob::model::{Pooling, normalise};
use hob::reference::ReferenceExecutor;
use hob::scheduler::{Batch, TokenSpan};
use hob::tensor::dequantize_row;
use tokio::sync::oneshot;

type Answer = oneshot::Receiver<Result<EmbedResult, AdmitError>>;

fn start(model: &Path, options: &EngineOptions) -> Engine {
    let executor = Box::new(ReferenceExecutor::new());
    let opened = engine::open(executor, model, options, &mut |_, _| {}).unwrap();
    let (handle, thread) = engine::start(opened, options).unwrap();
    Engine { handle, thread, folder: None }
}

fn of(texts: &[&[u32]]) -> EmbedRequest {
    EmbedRequest {
        owner: OWNER,
        texts: texts.iter().map(|text| text.to_vec()).collect(),
        pooling: None,
        priority: Priority::Normal,
        deadline: None,
        cancel: CancelFlag::default(),
    }
}

fn send(engine: &Engine, request: EmbedRequest) -> Answer {
    let (reply, answer) = oneshot::channel();
    let request = Box::new(request);
    let command = EngineCommand::Embed { request, reply };
    engine.handle.commands.blocking_send(OWNER, command).unwrap();
    answer
}

fn embed(engine: &Engine, request: EmbedRequest) -> Result<EmbedResult, AdmitError> {
    send(engine, request).blocking_recv().unwrap()
}

fn bits(vectors: &[Vec<f32>]) -> Vec<Vec<u32>> {
    vectors.iter().map(|vector| vector.iter().map(|value| value.to_bits()).collect()).collect()
}

#[test]
fn encoders_are_served_with_the_embeddings_of_llama_cpp() {
    for name in ["bert-cls", "bert-mean", "nomic-bert"] {
        let (path, goldens) = encoder(name);
        // Smaller slices than some texts: an encoder takes them whole.
        let options = EngineOptions { prefill_tokens_max: 8, ..EngineOptions::default() };
        let engine = start(&path, &options);
        let texts: Vec<&[u32]> = goldens.iter().map(|golden| &golden.tokens[..]).collect();
        assert!(texts.iter().any(|text| text.len() > 8));
        let together = embed(&engine, of(&texts)).unwrap();
        for ((golden, text), vector) in goldens.iter().zip(&texts).zip(&together.vectors) {
            let alone = embed(&engine, of(&[text])).unwrap();
            assert_eq!(bits(&alone.vectors), bits(std::slice::from_ref(vector)), "{name}");
            let mut vector = vector.clone();
            normalise(&mut vector);
            for (found, wanted) in vector.iter().zip(&golden.embedding) {
                assert!((found - wanted).abs() < 0.001, "{name}: {found}, {wanted} wanted");
            }
        }
        let pooled = EmbedRequest { pooling: Some(Pooling::Last), ..of(&texts[..1]) };
        assert_eq!(embed(&engine, pooled).unwrap().pooling, Pooling::Last);
        let refused = match engine.generate(request(None, &[2, 7, 3], 4)).blocking_recv() {
            Some(EngineEvent::Refused(error)) => error.to_string(),
            other => panic!("wanted a refusal, found {other:?}"),
        };
        assert!(refused.contains("generate no text"), "{refused}");
        assert_eq!(engine.status().kv_tokens_used, 0);
        engine.stop();
    }
}

#[test]
fn the_last_vector_of_a_text_is_what_its_next_token_is_predicted_from() {
    let folder = tempfile::tempdir().unwrap();
    for path in tiny::write(folder.path()) {
        let sizes =
            Sizes { context_tokens: 96, sessions: 1, tokens_max: 96, format: KvFormat::F32 };
        let mut model = Driven::load(Box::new(ReferenceExecutor::new()), &path, sizes);
        let text = prompt(3, 40);
        let lease = model.lease(text.len());
        let logits = model.evaluate(&lease, 0, &text, 1, 40).remove(0);
        let span = TokenSpan { table: lease.table(), position: 0, tokens: text, logits: 0 };
        let rows = model.runner.encode(&Batch { spans: vec![span] }).unwrap();
        model.release(lease);
        let width = rows.len() / 40;
        let last = &rows[39 * width..];
        let file = hob::hf::open_model(&path, None).unwrap();
        let head = file.tensor("token_embd.weight").unwrap();
        let mut bytes = vec![0; head.bytes as usize];
        file.read_tensor(head, 0, &mut bytes).unwrap();
        let mut weights = vec![0.0; width * head.rows() as usize];
        dequantize_row(head.supported_dtype().unwrap(), &bytes, &mut weights);
        for (row, logit) in weights.chunks_exact(width).zip(&logits) {
            let sum: f32 = row.iter().zip(last).map(|(weight, value)| weight * value).sum();
            assert!((sum - logit).abs() < 2e-4, "{sum}, {logit} wanted");
        }
    }
}

#[test]
fn texts_in_slices_and_beside_generations_have_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let [path, _] = tiny::write(folder.path());
    let options = EngineOptions {
        context_tokens: 96,
        kv_tokens: 480,
        prefill_tokens_max: 96,
        ..EngineOptions::default()
    };
    let engine = start(&path, &options);
    let texts: Vec<Vec<u32>> = [90, 3, 41, 1, 77].map(|len| prompt(len, len)).to_vec();
    let all: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
    for pooling in [Pooling::Mean, Pooling::Last] {
        let wanted = EmbedRequest { pooling: Some(pooling), ..of(&all) };
        let together = embed(&engine, wanted.clone()).unwrap();
        assert_eq!(together.pooling, pooling);
        for (text, vector) in all.iter().zip(&together.vectors) {
            let alone = EmbedRequest { pooling: Some(pooling), ..of(&[text]) };
            let alone = embed(&engine, alone).unwrap().vectors;
            assert_eq!(bits(&alone), bits(std::slice::from_ref(vector)));
        }
        let generating = request(None, &prompt(9, 20), 30);
        let quiet = engine.run(generating.clone());
        let events = engine.generate(generating);
        let beside = embed(&engine, wanted).unwrap();
        assert_eq!(bits(&beside.vectors), bits(&together.vectors));
        assert_eq!(finish(events).tokens, quiet.tokens);
    }
    assert_eq!(engine.status().kv_tokens_used, 0, "every text has given its pages back");
    engine.stop();
}

#[test]
fn whoever_gives_up_gets_no_vectors_and_frees_the_engine() {
    let folder = tempfile::tempdir().unwrap();
    let [path, _] = tiny::write(folder.path());
    let engine = start(&path, &EngineOptions { context_tokens: 96, ..EngineOptions::default() });
    let text = prompt(1, 96);
    let many = of(&vec![&text[..]; 2000]);
    let cancelled = send(&engine, many.clone());
    let closed = send(&engine, many.clone());
    let deadline = Some(Instant::now() + Duration::from_millis(50));
    let late =
        send(&engine, EmbedRequest { deadline, cancel: CancelFlag::default(), ..many.clone() });
    many.cancel.raise();
    drop(closed);
    assert_eq!(cancelled.blocking_recv().unwrap(), Err(AdmitError::Cancelled));
    assert_eq!(late.blocking_recv().unwrap(), Err(AdmitError::Deadline));
    assert_eq!(embed(&engine, of(&[&text])).unwrap().vectors.len(), 1);
    let status = engine.status();
    assert_eq!((status.running, status.queued, status.kv_tokens_used), (0, 0, 0));
    let last = send(&engine, EmbedRequest { cancel: CancelFlag::default(), ..many });
    engine.stop();
    assert_eq!(last.blocking_recv().unwrap(), Err(AdmitError::ShuttingDown));
}

#[test]
fn what_cannot_be_embedded_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [path, _] = tiny::write(folder.path());
    let quota = Quota { kv_bytes_max: Some(40 << 10), ..Quota::default() };
    let quotas = Quotas { default: quota, ..Quotas::default() };
    let options = EngineOptions { context_tokens: 96, quotas, ..EngineOptions::default() };
    let engine = start(&path, &options);
    assert_eq!(embed(&engine, of(&[])), Err(AdmitError::EmptyPrompt));
    assert_eq!(embed(&engine, of(&[&[5], &[]])), Err(AdmitError::EmptyPrompt));
    let unknown = AdmitError::UnknownToken { token: 96, vocab_size: 96 };
    assert_eq!(embed(&engine, of(&[&[5, 96]])), Err(unknown));
    let long = AdmitError::ContextFull { prompt_tokens: 97, context_tokens: 96 };
    assert_eq!(embed(&engine, of(&[&prompt(2, 97)])), Err(long));
    let refused = embed(&engine, of(&[&prompt(2, 96)]));
    assert!(matches!(refused, Err(AdmitError::UserKvFull { .. })), "{refused:?}");
    // Two of these are more than the user may have at once, so one follows the other.
    let short = prompt(2, 32);
    assert_eq!(embed(&engine, of(&[&short, &short, &short])).unwrap().vectors.len(), 3);
    engine.stop();
}

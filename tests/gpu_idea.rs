//! Tests of the idea itself: the cache holds what each token means in its text, and nothing but
//! earlier tokens of the same session goes into it. Each runs on the reference and on the device,
//! without and with subgroup operations.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/device.rs"]
mod device;
#[path = "common/random.rs"]
mod random;
#[path = "idea/texts.rs"]
mod texts;
#[path = "idea/tiny.rs"]
mod tiny;

use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};

use common::{Driven, Sizes, argmax};
use hob::gpu::Executor;
use hob::kernels::{KvFormat, PageLayout};
use hob::kv_cache::KvLease;
use hob::reference::ReferenceExecutor;
use hob::scheduler::{Batch, TokenSpan};
use random::Random;

// All comparisons below are of bits: a token's sums have one order, whatever else is in its batch.
// That is what lets a cache filled by prefill, by decoding or by another batch be used as one.

/// Largest batch of the models here.
const TOKENS_MAX: usize = 64;
/// Most logit rows of a step, by `Driven`.
const ROWS_MAX: usize = 16;

const SIZES: Sizes =
    Sizes { context_tokens: 128, sessions: 4, tokens_max: TOKENS_MAX, format: KvFormat::F16 };

/// What the models run on.
#[derive(Clone, Copy, Debug)]
enum On {
    Reference,
    Device,
    WithoutSubgroupOps,
}

/// A loaded model, and what the validation layer says where it runs.
struct Loaded {
    model: Driven,
    messages: Arc<Mutex<Vec<String>>>,
}

impl Loaded {
    fn new(path: &Path, on: On, sizes: Sizes) -> Self {
        println!("{} on {on:?}", path.display());
        let (executor, messages): (Box<dyn Executor>, _) = match on {
            On::Reference => (Box::new(ReferenceExecutor::with_lanes(8)), Arc::default()),
            On::Device | On::WithoutSubgroupOps => {
                let executor = device::open(matches!(on, On::WithoutSubgroupOps));
                let messages = executor.messages();
                (Box::new(executor), messages)
            }
        };
        Self { model: Driven::load(executor, path, sizes), messages }
    }

    fn run(&mut self, body: impl Fn(&mut Driven)) {
        body(&mut self.model);
        device::assert_silent(&self.messages);
    }
}

/// All that this driver is asked for.
fn executors() -> Vec<On> {
    let mut all = vec![On::Reference, On::Device];
    match device::compiles_variants_slowly() {
        true => println!("left out on this driver: shaders without subgroup operations"),
        false => all.push(On::WithoutSubgroupOps),
    }
    all
}

/// Runs `body` with the model on every executor.
fn on_all_executors(path: &Path, sizes: Sizes, body: impl Fn(&mut Driven)) {
    for on in executors() {
        let mut loaded = Loaded::new(path, on, sizes);
        loaded.run(&body);
        let messages = loaded.messages.clone();
        drop(loaded);
        device::assert_silent(&messages);
    }
}

/// A tiny model that several tests use, one after another: drivers take long to compile what it
/// runs. It is loaded at its first use.
struct Shared {
    /// Its place among those of [`tiny::write`].
    index: usize,
    on: On,
    loaded: Mutex<Option<Loaded>>,
}

/// Every tiny model on every executor, in [`SIZES`].
static TINY: LazyLock<Vec<Shared>> = LazyLock::new(|| {
    let on_all =
        (0..tiny::COUNT).flat_map(|index| executors().into_iter().map(move |on| (index, on)));
    on_all.map(|(index, on)| Shared { index, on, loaded: Mutex::default() }).collect()
});

/// Runs `body` with every tiny model on every executor; it gives back what it leases.
fn on_tiny_models(body: impl Fn(&mut Driven)) {
    for shared in TINY.iter() {
        let mut loaded = shared.loaded.lock().unwrap_or_else(|poisoned| {
            // A test that failed has given back nothing.
            shared.loaded.clear_poison();
            let mut loaded = poisoned.into_inner();
            *loaded = None;
            loaded
        });
        println!("tiny model {} on {:?}", shared.index, shared.on);
        let loaded = loaded.get_or_insert_with(|| {
            let folder = tempfile::tempdir().unwrap();
            Loaded::new(&tiny::write(folder.path())[shared.index], shared.on, SIZES)
        });
        loaded.run(&body);
    }
}

/// The same in other sizes, with models of the test's own.
fn on_tiny_models_of(sizes: Sizes, body: impl Fn(&mut Driven)) {
    let folder = tempfile::tempdir().unwrap();
    for path in tiny::write(folder.path()) {
        on_all_executors(&path, sizes, &body);
    }
}

/// Tokens of a session, from a position on.
fn span(lease: &KvLease, position: usize, tokens: &[u32], logits: usize) -> TokenSpan {
    let position = position as u32;
    TokenSpan { table: lease.table(), position, tokens: tokens.to_vec(), logits }
}

/// Runs one batch; returns its rows of logits.
fn step(model: &mut Driven, spans: Vec<TokenSpan>) -> Vec<Vec<f32>> {
    let batch = Batch { spans };
    model.runner.step(&batch).unwrap();
    let rows: Vec<_> =
        (0..batch.logit_count()).map(|row| model.runner.logits(row).to_vec()).collect();
    assert!(rows.iter().flatten().all(|logit| logit.is_finite()), "logits are finite");
    rows
}

/// Keys and values of one position: for each layer, all heads' keys and all heads' values.
type Cached = Vec<[Vec<f32>; 2]>;

fn cached(model: &mut Driven, lease: &KvLease, position: usize) -> Cached {
    let (kv, executor) = model.runner.kv_mut();
    let (layout, layers) = (kv.config().layout, kv.config().layers);
    let slot = position as u32 % PageLayout::TOKENS;
    let page = lease.pages()[position / PageLayout::TOKENS as usize].index();
    let page_bytes = layout.page_bytes();
    let mut words = vec![0_u32; page_bytes as usize / 4];
    let layer = |layer: usize| {
        let offset = kv.layer(layer).offset + u64::from(page) * page_bytes;
        let out = bytemuck::cast_slice_mut(&mut words);
        executor.read(kv.layer(layer).buffer, offset, out).unwrap();
        [false, true].map(|is_value| {
            let dim = layout.head_dim as usize;
            let mut values = vec![0.0; layout.kv_heads as usize * dim];
            for (head, out) in (0..).zip(values.chunks_exact_mut(dim)) {
                layout.load(&words, 0, slot, head, is_value, out);
            }
            values
        })
    };
    (0..layers).map(layer).collect()
}

fn random_tokens(seed: u64, count: usize) -> Vec<u32> {
    println!("seed {seed}");
    let mut random = Random::new(seed);
    (0..count).map(|_| random.below(tiny::VOCAB)).collect()
}

#[test]
fn prefill_of_many_tokens_equals_as_many_decode_steps() {
    let formats: &[KvFormat] = match device::runs_all(device::open(false).capabilities()) {
        true => &[KvFormat::F16, KvFormat::F32, KvFormat::Q8_0],
        false => &[KvFormat::F16],
    };
    for format in formats.iter().copied() {
        on_tiny_models_of(Sizes { format, ..SIZES }, |model| {
            let tokens = random_tokens(1, 40);
            let lease = model.lease(tokens.len());
            let decoded: Vec<Vec<f32>> = (0..tokens.len())
                .flat_map(|at| step(model, vec![span(&lease, at, &tokens[at..=at], 1)]))
                .collect();
            let decoded_kv: Vec<Cached> =
                (0..tokens.len()).map(|at| cached(model, &lease, at)).collect();
            model.release(lease);
            // At once, and in chunks that fit neither tiles nor pages.
            for chunk in [40, 2, 3, 7, 33] {
                let lease = model.lease(tokens.len());
                for first in (0..tokens.len()).step_by(chunk) {
                    let count = chunk.min(tokens.len() - first);
                    let wanted = count.min(ROWS_MAX);
                    let part = &tokens[first..first + count];
                    let rows = step(model, vec![span(&lease, first, part, wanted)]);
                    let expected = &decoded[first + count - wanted..first + count];
                    assert_eq!(rows, expected, "logits of {count} tokens from {first}");
                }
                for (at, expected) in decoded_kv.iter().enumerate() {
                    assert_eq!(&cached(model, &lease, at), expected, "cache at {at}, by {chunk}");
                }
                model.release(lease);
            }
        });
    }
}

/// Decodes greedily from the logits of a prompt; returns each step's logits.
fn continue_greedily(
    model: &mut Driven,
    lease: &KvLease,
    prompt: &[u32],
    steps: usize,
) -> Vec<Vec<f32>> {
    let mut rows = step(model, vec![span(lease, 0, prompt, 1)]);
    for at in prompt.len()..prompt.len() + steps {
        let next = argmax(rows.last().unwrap());
        rows.extend(step(model, vec![span(lease, at, &[next], 1)]));
    }
    rows
}

#[test]
fn interleaved_sessions_give_what_each_gives_alone() {
    const STEPS: usize = 6;
    on_tiny_models(|model| {
        let prompts = [random_tokens(2, 7), random_tokens(3, 33)];
        let alone = prompts.each_ref().map(|prompt| {
            let lease = model.lease(prompt.len() + STEPS);
            let rows = continue_greedily(model, &lease, prompt, STEPS);
            model.release(lease);
            rows
        });
        let next = |session: usize, at: usize| [argmax(&alone[session][at])];

        // Each in steps of its own, taken in turns. Other pages and tables than alone.
        let other = model.lease(40);
        let leases = prompts.each_ref().map(|prompt| model.lease(prompt.len() + STEPS));
        for session in [1, 0] {
            let rows = step(model, vec![span(&leases[session], 0, &prompts[session], 1)]);
            assert_eq!(rows[0], alone[session][0], "prompt of session {session}");
        }
        for at in 0..STEPS {
            for session in [0, 1] {
                let position = prompts[session].len() + at;
                let token = next(session, at);
                let rows = step(model, vec![span(&leases[session], position, &token, 1)]);
                assert_eq!(rows[0], alone[session][at + 1], "session {session}, step {at}");
            }
        }
        leases.into_iter().for_each(|lease| model.release(lease));

        // Both in one batch: prompts together, then a prompt's tail beside a token, then tokens.
        let leases = prompts.each_ref().map(|prompt| model.lease(prompt.len() + STEPS));
        let spans =
            vec![span(&leases[0], 0, &prompts[0], 1), span(&leases[1], 0, &prompts[1][..20], 0)];
        let rows = step(model, spans);
        assert_eq!(rows[0], alone[0][0], "a prompt beside another");
        let spans = vec![
            span(&leases[1], 20, &prompts[1][20..], 1),
            span(&leases[0], prompts[0].len(), &next(0, 0), 1),
        ];
        let rows = step(model, spans);
        assert_eq!(rows[0], alone[1][0], "the rest of a prompt beside a decode step");
        assert_eq!(rows[1], alone[0][1], "a decode step beside the rest of a prompt");
        for at in 0..STEPS - 1 {
            let spans = vec![
                span(&leases[0], prompts[0].len() + at + 1, &next(0, at + 1), 1),
                span(&leases[1], prompts[1].len() + at, &next(1, at), 1),
            ];
            let rows = step(model, spans);
            assert_eq!(rows[0], alone[0][at + 2], "session 0, shared step {at}");
            assert_eq!(rows[1], alone[1][at + 1], "session 1, shared step {at}");
        }
        leases.into_iter().for_each(|lease| model.release(lease));
        model.release(other);
    });
}

/// Batches of two to sixteen, the session at another place in each, beside sessions of other
/// lengths.
#[test]
fn a_session_among_up_to_fifteen_others_gives_what_it_gives_alone() {
    const OTHERS: usize = 15;
    on_tiny_models_of(Sizes { sessions: OTHERS + 1, ..SIZES }, |model| {
        let prompt = random_tokens(11, 37);
        let lease = model.lease(prompt.len() + OTHERS);
        let alone = continue_greedily(model, &lease, &prompt, OTHERS);
        model.release(lease);

        let length = |other: usize| 5 * other + 1;
        let others: Vec<KvLease> =
            (0..OTHERS).map(|other| model.lease(length(other) + OTHERS)).collect();
        for (other, lease) in others.iter().enumerate() {
            let tokens = random_tokens(20 + other as u64, length(other));
            tokens.chunks(TOKENS_MAX).zip(0..).for_each(|(part, chunk)| {
                step(model, vec![span(lease, chunk * TOKENS_MAX, part, 0)]);
            });
        }
        let lease = model.lease(prompt.len() + OTHERS);
        step(model, vec![span(&lease, 0, &prompt, 1)]);
        for at in 0..OTHERS {
            // The others that take part have not been in every batch before.
            let mut spans: Vec<TokenSpan> = (0..=at)
                .map(|other| {
                    let position = length(other) + at - other;
                    span(&others[other], position, &[(7 * other + at) as u32], 1)
                })
                .collect();
            let place = (5 * at + 1) % (spans.len() + 1);
            let token = [argmax(&alone[at])];
            spans.insert(place, span(&lease, prompt.len() + at, &token, 1));
            let rows = step(model, spans);
            assert_eq!(rows[place], alone[at + 1], "at {place} of {} sessions", at + 2);
        }
        others.into_iter().for_each(|other| model.release(other));
        model.release(lease);
    });
}

/// A prompt cut at every position of a page, the second part behind another session's tokens, so
/// that it begins at every place of the kernels' tiles.
#[test]
fn a_slice_of_a_prompt_gives_the_same_wherever_it_begins() {
    on_tiny_models(|model| {
        let (prompt, other) = (random_tokens(12, 45), random_tokens(13, 64));
        let lease = model.lease(prompt.len());
        let alone = step(model, vec![span(&lease, 0, &prompt, 1)]);
        model.release(lease);
        for first in 1..=PageLayout::TOKENS as usize {
            let (lease, beside) = (model.lease(prompt.len()), model.lease(other.len()));
            step(model, vec![span(&lease, 0, &prompt[..first], 0)]);
            let ahead = &other[..first % 19 + 1];
            let rest = span(&lease, first, &prompt[first..], 1);
            let rows = step(model, vec![span(&beside, 0, ahead, 1), rest]);
            assert_eq!(rows[1], alone[0], "cut at {first}, behind {} tokens", ahead.len());
            [lease, beside].into_iter().for_each(|lease| model.release(lease));
        }
    });
}

/// A fork's first token goes into a page that is copied; what follows is as if its text had been
/// evaluated alone, and so is what its origin does meanwhile.
#[test]
fn a_fork_and_its_origin_give_what_each_text_gives_alone() {
    on_tiny_models(|model| {
        let text = random_tokens(8, 45);
        let ways = [random_tokens(9, 5), random_tokens(10, 5)];
        let alone = ways.each_ref().map(|way| {
            let lease = model.lease(text.len() + way.len());
            let whole = [&text[..], way].concat();
            let rows = step(model, vec![span(&lease, 0, &whole, way.len())]);
            model.release(lease);
            rows
        });
        let mut origin = model.lease(text.len());
        step(model, vec![span(&origin, 0, &text, 1)]);
        let (kv, executor) = model.runner.kv_mut();
        let mut fork = kv.fork(executor, &origin, text.len()).unwrap().unwrap();
        for lease in [&mut fork, &mut origin] {
            kv.grow(executor, lease, text.len(), text.len() + 5).unwrap().unwrap();
        }
        assert_eq!(fork.pages()[0], origin.pages()[0], "the full page is shared");
        assert_ne!(fork.pages()[1], origin.pages()[1], "the one that is written is not");
        // Both in one batch, then in batches of their own.
        let at = text.len();
        let both = vec![span(&origin, at, &ways[0][..3], 3), span(&fork, at, &ways[1][..2], 2)];
        let rows = step(model, both);
        assert_eq!(rows[..3], alone[0][..3], "the origin beside its fork");
        assert_eq!(rows[3..], alone[1][..2], "the fork beside its origin");
        let rows = step(model, vec![span(&fork, at + 2, &ways[1][2..], 3)]);
        assert_eq!(rows, alone[1][2..], "the fork by itself");
        let rows = step(model, vec![span(&origin, at + 3, &ways[0][3..], 2)]);
        assert_eq!(rows, alone[0][3..], "the origin by itself");
        model.release(origin);
        model.release(fork);
    });
}

/// The same last token behind two prefixes of one length: its key is the same in layer 0, which
/// sees the token alone, and another in every layer above.
fn check_contextual(model: &mut Driven, texts: [&[u32]; 2]) {
    let last = texts[0].len() - 1;
    assert_eq!(texts[0].len(), texts[1].len(), "equal positions");
    assert_eq!(texts[0][last], texts[1][last], "the same token");
    assert_ne!(texts[0][..last], texts[1][..last], "behind different prefixes");
    let [a, b] = texts.map(|tokens| {
        let lease = model.lease(tokens.len());
        step(model, vec![span(&lease, 0, tokens, 1)]);
        let found = cached(model, &lease, last);
        model.release(lease);
        found
    });
    assert!(a[0][0].iter().any(|value| *value != 0.0), "the key is there");
    assert_eq!(a[0], b[0], "layer 0 sees the token and its position alone");
    for layer in 1..a.len() {
        assert_ne!(a[layer][0], b[layer][0], "keys of layer {layer}");
        assert_ne!(a[layer][1], b[layer][1], "values of layer {layer}");
    }
}

/// Two texts that begin with the same `shared` tokens: those have the same keys, values and logits,
/// whatever follows.
fn check_causal(model: &mut Driven, texts: [&[u32]; 2], shared: usize) {
    assert_eq!(texts[0][..shared], texts[1][..shared], "the same beginning");
    assert_ne!(texts[0][shared], texts[1][shared], "and then another token");
    let [a, b] = texts.map(|tokens| {
        let lease = model.lease(tokens.len());
        // The shared tokens' logits come out in a step with what follows.
        let wanted = tokens.len().min(ROWS_MAX);
        let rows = step(model, vec![span(&lease, 0, tokens, wanted)]);
        let found: Vec<Cached> = (0..shared).map(|at| cached(model, &lease, at)).collect();
        let follower = cached(model, &lease, shared);
        model.release(lease);
        (rows, found, follower)
    });
    assert_eq!(a.0[..shared], b.0[..shared], "logits of the beginning");
    assert_eq!(a.1, b.1, "keys and values of the beginning");
    assert_ne!(a.2, b.2, "the token that differs");
}

#[test]
fn the_cache_is_contextual() {
    on_tiny_models(|model| {
        let (mut a, mut b) = (random_tokens(4, 9), random_tokens(5, 9));
        (a[8], b[8]) = (17, 17);
        check_contextual(model, [&a, &b]);
        // One other token, eight positions ahead, is enough; the window of the tiny model is
        // longer.
        b[1..8].copy_from_slice(&a[1..8]);
        check_contextual(model, [&a, &b]);
    });
}

#[test]
fn the_cache_is_causal() {
    on_tiny_models(|model| {
        let a = random_tokens(6, 16);
        for changed in [1, 5, 15] {
            let mut b = a.clone();
            b[changed] = (b[changed] + 1) % tiny::VOCAB;
            check_causal(model, [&a, &b], changed);
        }
        // Another length is another batch.
        let mut longer = a[..9].to_vec();
        longer[4] = (longer[4] + 1) % tiny::VOCAB;
        check_causal(model, [&a, &longer], 4);
    });
}

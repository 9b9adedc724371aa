//! The KV cache against a simple model: whatever is done in whatever order, each lease reads what
//! was written through it or its origin, nobody reads another's, and no page is lost.

use std::collections::BTreeSet;

use hob::gpu::Executor;
use hob::kernels::{KvFormat, PageLayout};
use hob::kv_cache::{KvCache, KvConfig, KvLease, PageId};
use hob::reference::ReferenceExecutor;
use proptest::prelude::*;

const PAGE: usize = PageLayout::TOKENS as usize;
const LAYERS: usize = 2;
const PAGES: usize = 14;
const LEASES: usize = 6;
const CONTEXT: usize = 5 * PAGE;

/// Steps of a run.
const STEPS: usize = 10_000;

#[derive(Clone, Debug)]
enum Step {
    /// Writes as many positions behind the last one.
    Append(usize, usize),
    /// A new lease of a part of another.
    Fork(usize, usize),
    Truncate(usize, usize),
    Release(usize),
    /// Out of the device, and back where there is room.
    Park(usize),
    Clean,
}

fn step() -> impl Strategy<Value = Step> {
    let of = 0..LEASES;
    prop_oneof![
        6 => (of.clone(), 1..70_usize).prop_map(|(lease, tokens)| Step::Append(lease, tokens)),
        3 => (of.clone(), 0..CONTEXT).prop_map(|(lease, at)| Step::Fork(lease, at)),
        2 => (of.clone(), 0..CONTEXT).prop_map(|(lease, at)| Step::Truncate(lease, at)),
        2 => of.clone().prop_map(Step::Release),
        1 => of.prop_map(Step::Park),
        1 => Just(Step::Clean),
    ]
}

/// A lease, and a mark for each of its positions.
struct Tracked {
    lease: KvLease,
    marks: Vec<u32>,
    /// It and its forks.
    family: usize,
}

struct Machine {
    executor: ReferenceExecutor,
    cache: KvCache,
    leases: Vec<Tracked>,
    /// The family that wrote each mark.
    writers: Vec<usize>,
    families: usize,
}

impl Machine {
    fn new() -> Self {
        let layout = PageLayout { kv_heads: 1, head_dim: 8, format: KvFormat::F16, key_words: 4 };
        let mut executor = ReferenceExecutor::new();
        let config = KvConfig {
            layout,
            layers: LAYERS,
            context_tokens: CONTEXT,
            tokens_max: PAGES * PAGE,
            leases_max: LEASES,
        };
        let cache = KvCache::new(&mut executor, config).expect("memory");
        Self { executor, cache, leases: Vec::new(), writers: vec![usize::MAX], families: 0 }
    }

    /// Where the test keeps the mark of a position: a word of its own in the page of each layer.
    fn place(&self, lease: &KvLease, at: usize) -> u64 {
        let page_bytes = self.cache.config().layout.page_bytes();
        let slot_bytes = page_bytes / PAGE as u64;
        u64::from(lease.pages()[at / PAGE].index()) * page_bytes + (at % PAGE) as u64 * slot_bytes
    }

    fn read(&mut self, lease: usize, at: usize, layer: usize) -> u32 {
        let place = self.place(&self.leases[lease].lease, at);
        let mut bytes = [0; 4];
        self.executor.read(self.cache.layer(layer).buffer, place, &mut bytes).expect("read");
        u32::from_le_bytes(bytes)
    }

    fn apply(&mut self, step: &Step) {
        let count = self.leases.len();
        match *step {
            Step::Append(lease, tokens) => self.append(lease, tokens),
            Step::Fork(lease, at) if lease < count => {
                let Tracked { lease, marks, family } = &self.leases[lease];
                let at = at.min(marks.len());
                let fork = self.cache.fork(&mut self.executor, lease, at).expect("device");
                let (marks, family) = (marks[..at].to_vec(), *family);
                match fork {
                    Ok(lease) => self.leases.push(Tracked { lease, marks, family }),
                    Err(_) => assert_eq!(count, LEASES, "only for want of a table"),
                }
            }
            Step::Truncate(lease, at) if lease < count => {
                let tracked = &mut self.leases[lease];
                tracked.marks.truncate(at);
                self.cache.shrink(&mut tracked.lease, tracked.marks.len());
            }
            Step::Release(lease) if lease < count => {
                self.cache.release(self.leases.swap_remove(lease).lease);
            }
            Step::Park(lease) if lease < count => self.park(lease),
            Step::Clean => self.cache.clean(&mut self.executor).expect("device"),
            _ => {}
        }
    }

    fn append(&mut self, lease: usize, tokens: usize) {
        if lease >= self.leases.len() {
            let Ok(lease) = self.cache.lease() else { return };
            self.families += 1;
            self.leases.push(Tracked { lease, marks: Vec::new(), family: self.families });
        }
        let lease = lease.min(self.leases.len() - 1);
        let Tracked { lease: held, marks, family } = &mut self.leases[lease];
        let family = *family;
        let (used, end) = (marks.len(), (marks.len() + tokens).min(CONTEXT));
        let (free, wanted) =
            (self.cache.pages_available(), self.cache.pages_wanted(held, used, end));
        let grown = self.cache.grow(&mut self.executor, held, used, end).expect("device");
        assert_eq!(grown.is_ok(), wanted <= free, "{wanted} pages of {free}");
        if grown.is_err() {
            return;
        }
        for at in used..end {
            let mark = self.writers.len() as u32;
            self.writers.push(family);
            for layer in 0..LAYERS {
                let before = self.read(lease, at, layer);
                // What this lease or its origin has rolled back may stand there, and nobody else's.
                let writer = self.writers[before as usize];
                assert!(before == 0 || writer == family, "{writer}'s, read by {family}");
                let place = self.place(&self.leases[lease].lease, at);
                let buffer = self.cache.layer(layer).buffer;
                self.executor
                    .write(buffer, place, 4, &mut |out| out.copy_from_slice(&mark.to_le_bytes()))
                    .expect("write");
            }
            self.leases[lease].marks.push(mark);
        }
    }

    fn park(&mut self, at: usize) {
        let Tracked { lease, marks, family } = self.leases.swap_remove(at);
        let bytes = self.cache.read_pages(&mut self.executor, &lease, marks.len()).expect("device");
        self.cache.release(lease);
        let mut lease = self.cache.lease().expect("the row it had");
        let grown =
            self.cache.grow(&mut self.executor, &mut lease, 0, marks.len()).expect("device");
        if grown.is_err() {
            return self.cache.release(lease); // its pages went on with a fork
        }
        self.cache.write_pages(&mut self.executor, &lease, marks.len(), &bytes).expect("device");
        self.leases.push(Tracked { lease, marks, family });
    }

    fn check(&mut self) {
        let mut owned: BTreeSet<PageId> = BTreeSet::new();
        for tracked in &self.leases {
            assert!(tracked.lease.tokens_max() >= tracked.marks.len());
            owned.extend(tracked.lease.pages());
        }
        assert_eq!(self.cache.pages_available(), PAGES - owned.len(), "every page is somewhere");
        for lease in 0..self.leases.len() {
            // A few positions of each: both ends, and one between.
            let len = self.leases[lease].marks.len();
            for at in [0, len / 2, len.saturating_sub(1)] {
                for layer in 0..LAYERS {
                    if at < len {
                        assert_eq!(self.read(lease, at, layer), self.leases[lease].marks[at]);
                    }
                }
            }
        }
    }

    /// Whoever takes all that is free finds nothing there.
    fn check_clean(&mut self) {
        self.leases.drain(..).for_each(|tracked| self.cache.release(tracked.lease));
        let mut owned = BTreeSet::new();
        while self.cache.pages_available() > 0 {
            let tokens = CONTEXT.min(self.cache.tokens_free());
            let mut lease = self.cache.lease().expect("few are needed");
            self.cache
                .grow(&mut self.executor, &mut lease, 0, tokens)
                .expect("device")
                .expect("pages");
            owned.extend(lease.pages().to_vec());
            self.leases.push(Tracked { lease, marks: Vec::new(), family: 0 });
        }
        assert_eq!(owned.len(), PAGES);
        for layer in 0..LAYERS {
            let slice = self.cache.layer(layer);
            let mut bytes = vec![1; slice.bytes as usize];
            self.executor.read(slice.buffer, 0, &mut bytes).expect("read");
            assert!(bytes.iter().all(|byte| *byte == 0), "nothing of anybody is left");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, max_shrink_iters: 200, ..Default::default() })]

    #[test]
    fn leases_hold_what_was_written_through_them(
        steps in prop::collection::vec(step(), STEPS..=STEPS),
    ) {
        let mut machine = Machine::new();
        for step in &steps {
            machine.apply(step);
            machine.check();
        }
        machine.check_clean();
    }
}

//! From a source to a compiled grammar: on threads of its own, and in bounds.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{InferenceCapabilities, TokEnv};
use llguidance::{Matcher, ParserFactory};

use super::cache::Cache;
use super::vocabulary;
use super::{BeginsAfter, GrammarError, GrammarKind, GrammarSource, GrammarState, gbnf, schema};
use crate::tokenizer::Tokenizer;

/// Most bytes of a grammar.
const BYTES_MAX: usize = 512 << 10;
/// Brackets within one another in a Lark grammar, whose parser calls itself for each.
const DEPTH_MAX: usize = 128;
/// Threads that compile for one model; a user has one at a time.
const THREADS_MAX: usize = 2;
/// Grammars of one user that wait for a thread.
const WAITING_MAX: usize = 32;
/// Rules that name one another are followed by recursion.
const STACK_BYTES: usize = 256 << 20;
/// Bytes of a message from the parser that are passed on.
const MESSAGE_BYTES: usize = 800;

/// Limits on what a grammar may cost. A mask takes milliseconds at most by them, and a lexer some
/// tens of MiB.
const LIMITS: ParserLimits = ParserLimits {
    max_items_in_row: 2000,
    initial_lexer_fuel: 1_000_000,
    step_lexer_fuel: 200_000,
    step_max_items: 50_000,
    max_lexer_states: 50_000,
    max_grammar_size: 500_000,
    precompute_large_lexemes: true,
    verbose_errors: false,
};

/// A compiled grammar.
pub struct Grammar {
    /// At the beginning of a text; each text has a copy.
    fresh: Mutex<Matcher>,
    tokens: TokEnv,
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").finish_non_exhaustive()
    }
}

impl Grammar {
    /// The state of a text that begins now, or behind something else.
    #[must_use]
    pub fn begin(&self, after: Option<BeginsAfter>) -> GrammarState {
        let fresh = self.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        // A copy of its own: what a text makes of the lexer costs no other one anything.
        GrammarState::new(fresh.deep_clone(), self.tokens.clone(), after)
    }
}

/// What a grammar was asked for with.
type Reply = Box<dyn FnOnce(Result<Arc<Grammar>, GrammarError>) + Send>;

struct Job {
    source: GrammarSource,
    /// True if anybody still wants it.
    is_wanted: Box<dyn Fn() -> bool + Send>,
    reply: Reply,
}

/// Those who wait for a thread, by user, and who has one.
#[derive(Default)]
struct Desk {
    waiting: VecDeque<(u32, VecDeque<Job>)>,
    busy: Vec<u32>,
    threads: usize,
}

impl Desk {
    /// The next job: users take turns, and have one thread each.
    fn take(&mut self) -> Option<(u32, Job)> {
        let free = |(uid, _): &(u32, VecDeque<Job>)| !self.busy.contains(uid);
        let at = self.waiting.iter().position(free)?;
        let (uid, mut jobs) = self.waiting.remove(at)?;
        let job = jobs.pop_front()?;
        if !jobs.is_empty() {
            self.waiting.push_back((uid, jobs));
        }
        self.busy.push(uid);
        Some((uid, job))
    }

    fn put(&mut self, uid: u32, job: Job) -> Result<(), Job> {
        match self.waiting.iter_mut().find(|(user, _)| *user == uid) {
            Some((_, jobs)) if jobs.len() >= WAITING_MAX => return Err(job),
            Some((_, jobs)) => jobs.push_back(job),
            None => self.waiting.push_back((uid, VecDeque::from([job]))),
        }
        Ok(())
    }
}

/// Compiles grammars for one tokenizer, and keeps them.
pub struct GrammarCompiler {
    tokenizer: Arc<Tokenizer>,
    /// Made with the first grammar: it takes a third of a second for a large vocabulary.
    factory: OnceLock<Result<ParserFactory, GrammarError>>,
    cache: Mutex<Cache>,
    desk: Mutex<Desk>,
}

impl std::fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarCompiler").finish_non_exhaustive()
    }
}

impl GrammarCompiler {
    /// For the grammars of a model's texts.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self {
            tokenizer,
            factory: OnceLock::new(),
            cache: Mutex::default(),
            desk: Mutex::default(),
        }
    }

    /// Compiles for a user, or takes what was compiled for them before, and hands the result to
    /// `reply`, on a thread of its own or at once. A grammar that waits is dropped once `is_wanted`
    /// says so; one that is being compiled is finished and kept.
    pub fn start(
        self: &Arc<Self>,
        uid: u32,
        source: GrammarSource,
        is_wanted: impl Fn() -> bool + Send + 'static,
        reply: impl FnOnce(Result<Arc<Grammar>, GrammarError>) + Send + 'static,
    ) {
        if let Some(known) = self.lock_cache().get(uid, &source) {
            return reply(Ok(known));
        }
        if let Err(error) = check(&source) {
            return reply(Err(error));
        }
        let job = Job { source, is_wanted: Box::new(is_wanted), reply: Box::new(reply) };
        let mut desk = self.lock_desk();
        if let Err(job) = desk.put(uid, job) {
            drop(desk);
            return (job.reply)(Err(GrammarError::QueueFull { limit: WAITING_MAX }));
        }
        if desk.threads == THREADS_MAX {
            return;
        }
        let compiler = Arc::clone(self);
        let thread = thread::Builder::new().name("grammars".into()).stack_size(STACK_BYTES);
        match thread.spawn(move || compiler.work()) {
            Ok(_) => desk.threads += 1,
            Err(_) if desk.threads > 0 => {} // whoever is there will come to it
            Err(error) => {
                let waiting = std::mem::take(&mut desk.waiting);
                drop(desk);
                for job in waiting.into_iter().flat_map(|(_, jobs)| jobs) {
                    (job.reply)(Err(GrammarError::NoThread(error.to_string())));
                }
            }
        }
    }

    /// Compiles here and now, whoever waits.
    ///
    /// # Errors
    /// [`GrammarError`].
    pub fn compile(&self, source: &GrammarSource) -> Result<Arc<Grammar>, GrammarError> {
        check(source)?;
        let factory = self.factory.get_or_init(|| factory(&self.tokenizer));
        let factory = factory.as_ref().map_err(Clone::clone)?;
        let top = top_level(source, &self.tokenizer)?;
        let parser = factory.create_parser(top);
        let parser = parser.map_err(|error| invalid(source.kind, &error.to_string()))?;
        let fresh = Matcher::new(Ok(parser));
        if let Some(error) = fresh.get_error() {
            return Err(invalid(source.kind, &error));
        }
        let tokens = factory.tok_env().clone();
        let grammar = Arc::new(Grammar { fresh: Mutex::new(fresh), tokens });
        // A grammar that allows nothing at all is found now rather than when it is used.
        let mut mask = vec![0; super::mask_words(self.tokenizer.vocab_size())];
        let first = grammar.begin(None).mask(&mut mask);
        first.map_err(|error| invalid(source.kind, &error.to_string()))?;
        Ok(grammar)
    }

    /// Compiles what waits until nothing does.
    fn work(&self) {
        loop {
            let mut desk = self.lock_desk();
            let Some((uid, job)) = desk.take() else {
                desk.threads -= 1;
                return;
            };
            drop(desk);
            if (job.is_wanted)() {
                let known = self.lock_cache().get(uid, &job.source);
                let made = match known {
                    Some(known) => Ok(known),
                    None => self.compile(&job.source),
                };
                if let Ok(grammar) = &made {
                    self.lock_cache().put(uid, job.source, Arc::clone(grammar));
                }
                (job.reply)(made);
            }
            self.lock_desk().busy.retain(|user| *user != uid);
        }
    }

    fn lock_cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_desk(&self) -> std::sync::MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn factory(tokenizer: &Tokenizer) -> Result<ParserFactory, GrammarError> {
    let environment = vocabulary::environment(tokenizer);
    let slices = llguidance::earley::SlicedBiasComputer::general_slices();
    let made = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices);
    let mut factory = made.map_err(|error| GrammarError::Stuck(brief(&error.to_string())))?;
    factory.quiet();
    *factory.limits_mut() = LIMITS;
    Ok(factory)
}

/// What can be told without compiling.
fn check(source: &GrammarSource) -> Result<(), GrammarError> {
    let (kind, found) = (source.kind.title(), source.text.len());
    if found > BYTES_MAX {
        return Err(GrammarError::TooLong { kind, found, limit: BYTES_MAX });
    }
    Ok(())
}

fn top_level(
    source: &GrammarSource,
    tokenizer: &Tokenizer,
) -> Result<TopLevelGrammar, GrammarError> {
    let text = &source.text;
    Ok(match source.kind {
        GrammarKind::JsonSchema => TopLevelGrammar::from_json_schema(schema::parse(text)?),
        GrammarKind::JsonObject => TopLevelGrammar::from_json_schema(schema::any_object()?),
        GrammarKind::Regex => TopLevelGrammar::from_regex(text),
        GrammarKind::Lark => {
            check_nesting(text)?;
            TopLevelGrammar::from_lark(text.clone())
        }
        GrammarKind::Gbnf => {
            let root = source.root.as_deref().unwrap_or("root");
            TopLevelGrammar::from_lark(gbnf::to_lark(text, root, tokenizer)?)
        }
    })
}

/// Refuses a Lark grammar with more brackets within one another than its parser bears, those in
/// texts and expressions included.
fn check_nesting(text: &str) -> Result<(), GrammarError> {
    let mut depth = 0_usize;
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return Err(GrammarError::TooDeep { kind: "Lark grammar", limit: DEPTH_MAX });
        }
    }
    Ok(())
}

fn invalid(kind: GrammarKind, message: &str) -> GrammarError {
    GrammarError::Invalid { kind: kind.title(), message: brief(message) }
}

/// The beginning of a message.
pub(super) fn brief(message: &str) -> String {
    let message = message.trim();
    let mut end = message.len().min(MESSAGE_BYTES);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message[..end].to_owned()
}

//! The scheduler under a virtual clock: how long anybody waits, and who gets how much.
#![allow(clippy::unwrap_used)]

#[path = "common/random.rs"]
mod random;

use hob::scheduler::{Claim, Fairness, Placement, Priority, Share, StepLimits, Work, place, plan};
use random::Random;

/// A device's cost, in microseconds: a step, a token of a prompt, a token that is decoded.
const STEP: u64 = 5_000;
const PREFILL: u64 = 200;
const DECODE: u64 = 1_000;

const SLICE: usize = 64;
const PLACES: usize = 8;

/// A request, and what has become of it.
#[derive(Clone, Debug)]
struct Job {
    claim: Claim,
    /// When it arrives.
    arrival: u64,
    prompt_left: usize,
    answer_left: usize,
    /// Steps formed since it arrived, until its first token.
    steps_waited: usize,
    first_token: Option<u64>,
    end: Option<u64>,
    /// Tokens computed for it.
    computed: usize,
}

impl Job {
    fn new(
        request: u64,
        uid: u32,
        priority: Priority,
        arrival: u64,
        (prompt, answer): (usize, usize),
    ) -> Self {
        Self {
            claim: Claim { request, uid, session: request, priority },
            arrival,
            prompt_left: prompt,
            answer_left: answer,
            steps_waited: 0,
            first_token: None,
            end: None,
            computed: 0,
        }
    }

    fn work(&self) -> Work {
        let decoding = self.prompt_left == 0;
        Work {
            claim: self.claim,
            pending: self.prompt_left.max(1),
            decoding,
            all_logits: false,
            last_logits: true,
        }
    }

    fn compute(&mut self, tokens: usize, now: u64) {
        self.computed += tokens;
        self.prompt_left = self.prompt_left.saturating_sub(tokens);
        if self.prompt_left > 0 {
            return;
        }
        self.first_token.get_or_insert(now);
        self.answer_left -= 1;
        if self.answer_left == 0 {
            self.end = Some(now);
        }
    }
}

/// The engine's loop without an engine.
struct Simulation {
    fair: Fairness,
    now: u64,
    jobs: Vec<Job>,
    /// Indices of jobs.
    running: Vec<usize>,
}

impl Simulation {
    fn new(jobs: Vec<Job>) -> Self {
        Self { fair: Fairness::default(), now: 0, jobs, running: Vec::new() }
    }

    fn waiting(&self) -> Vec<usize> {
        let waits = |at: &usize| {
            let job = &self.jobs[*at];
            job.arrival <= self.now && job.end.is_none() && !self.running.contains(at)
        };
        (0..self.jobs.len()).filter(waits).collect()
    }

    fn admit(&mut self) {
        let mut blocked: Option<Priority> = None;
        loop {
            let mut waiting = self.waiting();
            waiting.retain(|at| blocked.is_none_or(|b| self.jobs[*at].claim.priority < b));
            let claims: Vec<Claim> = waiting.iter().map(|at| self.jobs[*at].claim).collect();
            let Some(next) = self.fair.order(&claims).first().copied() else { return };
            let running: Vec<Claim> = self.running.iter().map(|at| self.jobs[*at].claim).collect();
            match place(&self.fair, &claims[next], &running, PLACES) {
                Placement::Free => self.running.push(waiting[next]),
                Placement::InsteadOf(victim) => self.running[victim] = waiting[next],
                Placement::None => blocked = Some(claims[next].priority),
            }
        }
    }

    /// One step; `false` when nothing is left to do.
    fn step(&mut self) -> bool {
        self.admit();
        if self.running.is_empty() {
            let later = self.jobs.iter().filter(|job| job.end.is_none()).map(|job| job.arrival);
            let Some(next) = later.min() else { return false };
            self.now = next;
            return true;
        }
        let work: Vec<Work> = self.running.iter().map(|at| self.jobs[*at].work()).collect();
        let limits = StepLimits {
            tokens_max: 512,
            rows_max: PLACES,
            slice_tokens: SLICE,
            joined_tokens: SLICE / 4,
        };
        let shares = plan(&self.fair, &work, limits);
        assert!(!shares.is_empty(), "there is work, and nothing is done");
        let tokens: usize = shares.iter().map(|share| share.tokens).sum();
        let decodes = shares.iter().filter(|share| work[share.work].decoding).count();
        assert!(tokens - decodes <= SLICE && shares.len() <= PLACES);
        let deciding = work.iter().filter(|work| work.decoding).count();
        assert_eq!(decodes, deciding, "everybody who decodes is part of every step");
        for job in &mut self.jobs {
            let waits = job.arrival <= self.now && job.first_token.is_none();
            job.steps_waited += usize::from(waits);
        }
        self.now += STEP + PREFILL * (tokens - decodes) as u64 + DECODE * decodes as u64;
        for Share { work: index, tokens, .. } in shares {
            let at = self.running[index];
            self.fair.charge(&self.jobs[at].claim, tokens);
            self.jobs[at].compute(tokens, self.now);
        }
        self.running.retain(|at| self.jobs[*at].end.is_none());
        true
    }

    fn run_until(&mut self, end: u64) {
        while self.now < end && self.step() {}
    }
}

#[test]
fn a_short_urgent_request_waits_for_a_step_and_a_slice_whatever_else_there_is() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let mut jobs: Vec<Job> = (0..30)
            .map(|n| {
                let priority = Priority::ALL[1 + random.below(2) as usize];
                let size = (1 + random.below(8192) as usize, 1 + random.below(300) as usize);
                Job::new(n, random.below(4), priority, u64::from(random.below(2_000_000)), size)
            })
            .collect();
        // One at a time: a prompt of half a slice, and a few words.
        for n in 0..100 {
            let arrival = 500_000 * (n + 1) + u64::from(random.below(200_000));
            jobs.push(Job::new(100 + n, 9, Priority::Interactive, arrival, (SLICE / 2, 4)));
        }
        let mut simulation = Simulation::new(jobs);
        simulation.run_until(u64::MAX);
        for job in simulation.jobs.iter().filter(|job| job.claim.uid == 9) {
            // The step that runs as it arrives is over when the next one is formed: of those formed
            // since then, one may be a slice of others, and one is its own.
            assert!(job.steps_waited <= 2, "seed {seed}: {job:?}");
            let longest = STEP + PREFILL * SLICE as u64 + DECODE * PLACES as u64;
            let waited = job.first_token.unwrap() - job.arrival;
            assert!(waited <= 3 * longest, "seed {seed}: {waited} us: {job:?}");
        }
    }
}

#[test]
fn nobody_starves_behind_those_who_are_more_urgent() {
    // More urgent prompts without end, from three users.
    let mut jobs: Vec<Job> = (0..3000)
        .map(|n| {
            let priority = Priority::ALL[(n % 2) as usize];
            Job::new(n, (n % 3) as u32, priority, 20_000 * n, (400, 2))
        })
        .collect();
    jobs.push(Job::new(5000, 8, Priority::Background, 0, (2000, 3)));
    let mut simulation = Simulation::new(jobs);
    simulation.run_until(3000 * 20_000);
    let background = simulation.jobs.last().unwrap();
    let end = background.end.expect("it ends while the others still come");
    // Its share is one of 21 parts of the tokens; every slice has SLICE of them. It loses its place
    // to the more urgent after each, and the next turn may wait for one as long again.
    let slices = 21 * 2000 / SLICE as u64 + 21;
    let longest = STEP + PREFILL * SLICE as u64 + DECODE * PLACES as u64;
    assert!(end <= 2 * slices * longest, "{end} us");
    assert!(simulation.jobs.iter().any(|job| job.end.is_none()), "the device was not idle");
}

#[test]
fn users_have_equal_parts_however_many_sessions_they_have() {
    let mut jobs: Vec<Job> =
        (0..12).map(|n| Job::new(n, 1, Priority::Normal, 0, (100_000, 1))).collect();
    jobs.push(Job::new(20, 2, Priority::Normal, 0, (100_000, 1)));
    jobs.push(Job::new(21, 3, Priority::Normal, 0, (100_000, 1)));
    let mut simulation = Simulation::new(jobs);
    simulation.run_until(20_000_000);
    let of = |uid| -> usize {
        let own = simulation.jobs.iter().filter(|job| job.claim.uid == uid);
        own.map(|job| job.computed).sum()
    };
    let parts = [of(1), of(2), of(3)];
    assert!(parts.iter().min().unwrap() + 2 * SLICE >= *parts.iter().max().unwrap(), "{parts:?}");
    // And so have the sessions of a user that have a place.
    let running = simulation.running.iter().map(|at| &simulation.jobs[*at]);
    let own: Vec<usize> =
        running.filter(|job| job.claim.uid == 1).map(|job| job.computed).collect();
    assert!(own.len() > 1);
    assert!(own.iter().min().unwrap() + 2 * SLICE >= *own.iter().max().unwrap(), "{own:?}");
}

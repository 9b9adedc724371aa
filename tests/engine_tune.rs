//! The tuner: the fastest right shape is chosen, whatever it is the tokens stay, and nobody waits
//! for it.

#[path = "common/faults.rs"]
mod faults;
#[path = "common/random.rs"]
mod random;
#[path = "common/streams.rs"]
mod streams;
#[path = "idea/tiny.rs"]
mod tiny;

use std::path::Path;
use std::time::Duration;

use faults::Plan;
use hob::config::Numerics;
use hob::engine::{
    self, EngineOptions, Runner, TuneOptions, TunedProduct, Tuner, Verdict, tuned_on,
};
use hob::gpu::{Capabilities, Dispatch, Executor as _};
use hob::kernels::matmul::Tier;
use hob::reference::ReferenceExecutor;
use streams::{Failure, join, play};

fn tune_options(folder: Option<&Path>, quiet: Duration) -> TuneOptions {
    tune_options_by(Numerics::Exact, folder, quiet)
}

fn tune_options_by(numerics: Numerics, folder: Option<&Path>, quiet: Duration) -> TuneOptions {
    TuneOptions {
        reference: |lanes| Box::new(ReferenceExecutor::with_lanes(lanes)),
        numerics,
        folder: folder.map(Path::to_owned),
        measure: true,
        quiet,
    }
}

fn options(tune: Option<TuneOptions>) -> EngineOptions {
    EngineOptions {
        context_tokens: 96,
        kv_tokens: 288,
        sessions_max: 64,
        reopen_pause: Duration::ZERO,
        tune,
        ..EngineOptions::default()
    }
}

fn open(model: &Path, plan: &Plan, lanes: u32) -> Result<Runner, Failure> {
    let executor = plan.open(ReferenceExecutor::with_lanes(lanes))?;
    Ok(engine::open(executor, model, &options(None), &mut |_, _| {})?.runner)
}

/// Rows of a lane, where it is a product.
fn rows(dispatch: &Dispatch) -> u32 {
    if dispatch.kernel.name.starts_with("matmul_") { dispatch.spec[3] } else { 0 }
}

/// Fewer rows are faster.
fn times(dispatch: &Dispatch) -> f64 {
    f64::from(100 * rows(dispatch))
}

/// Tunes to the end; the products, and how many steps it took.
fn tune(runner: &mut Runner, folder: Option<&Path>) -> Result<(Vec<TunedProduct>, usize), Failure> {
    let mut tuner = Tuner::new(tune_options(folder, Duration::ZERO));
    tuner.prepare(runner);
    let (mut steps, mut done) = (0, 0);
    while let Some(progress) = tuner.step(runner)? {
        assert!(progress.done >= done && progress.done <= progress.all, "{progress:?}");
        (steps, done) = (steps + 1, progress.done);
    }
    Ok((tuner.done().to_vec(), steps))
}

#[test]
fn the_fastest_right_shape_is_chosen_and_runs_and_is_kept() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let [model, _] = tiny::write(folder.path());
    let kept = folder.path().join("cache");
    let plan = Plan::default();
    plan.set_times(times);
    let mut runner = open(&model, &plan, 8)?;
    let (products, steps) = tune(&mut runner, Some(&kept))?;
    assert!(products.len() >= 5 && steps > products.len(), "{} {steps}", products.len());
    for product in &products {
        let chosen = &product.shapes[product.chosen];
        assert_eq!((chosen.shape.rows, product.ratio()), (2, 0.5), "{product:?}");
        assert!(product.shapes.len() <= 11);
    }
    plan.take_ran();
    runner.try_out()?;
    let ran = plan.take_ran();
    let products_ran: Vec<&String> = ran.iter().filter(|name| name.contains('[')).collect();
    let matmuls = || products_ran.iter().filter(|name| name.starts_with("matmul_"));
    assert!(matmuls().count() > 2, "{ran:?}");
    assert!(matmuls().all(|name| name.contains("[8, 1, 1, 2,")), "{ran:?}");

    // The next start knows it, on this device and on no other.
    let caps = runner.executor().capabilities().clone();
    assert_eq!(tuned_on(&caps, &kept, Numerics::Exact), products);
    assert_eq!(tune(&mut runner, Some(&kept))?, (products, 0));
    let other = Capabilities { driver: "another".into(), ..caps.clone() };
    assert_eq!(tuned_on(&other, &kept, Numerics::Exact), []);
    for file in std::fs::read_dir(&kept)? {
        std::fs::write(file?.path(), "[]")?;
    }
    assert_eq!(tuned_on(&caps, &kept, Numerics::Exact), [], "a damaged file is ignored");
    Ok(())
}

#[test]
fn a_shape_that_computes_wrongly_is_never_used() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let [model, _] = tiny::write(folder.path());
    let plan = Plan::default();
    plan.set_times(|dispatch| 1e6 - times(dispatch)); // more rows are faster
    plan.set_wrong_where(|dispatch| rows(dispatch) == 8);
    let mut runner = open(&model, &plan, 8)?;
    let (products, _) = tune(&mut runner, None)?;
    let mut wrong = 0;
    for product in &products {
        assert_ne!(product.shapes[product.chosen].shape.rows, 8, "{product:?}");
        for measured in &product.shapes {
            let is_wrong = matches!(measured.verdict, Verdict::Wrong(_));
            assert_eq!(is_wrong, measured.shape.rows == 8, "{product:?}");
            wrong += usize::from(is_wrong);
        }
    }
    assert!(wrong > 5, "{wrong}");
    Ok(())
}

/// Products of many tokens are the fastest by halves.
fn times_for_halves(dispatch: &Dispatch) -> f64 {
    match dispatch.kernel.name {
        "narrow_half" => 1.0,
        name if name.ends_with("_half") => 10.0,
        _ => 100.0,
    }
}

#[test]
fn narrower_numbers_are_chosen_where_they_are_faster_and_right_and_allowed() -> Result<(), Failure>
{
    let folder = tempfile::tempdir()?;
    let [model, _] = tiny::write(folder.path());
    let plan = Plan::default();
    plan.set_times(times_for_halves);
    plan.set_wrong_where(|dispatch| {
        dispatch.kernel.name.starts_with("matmul_tiled") && dispatch.spec[4] == 64
    });
    let by = |numerics: Numerics| -> Result<Vec<TunedProduct>, Failure> {
        let executor = plan.open(ReferenceExecutor::with_lanes(8))?;
        let tune = tune_options_by(numerics, None, Duration::ZERO);
        let options = options(Some(tune.clone()));
        let mut runner = engine::open(executor, &model, &options, &mut |_, _| {})?.runner;
        let mut tuner = Tuner::new(tune);
        tuner.prepare(&mut runner);
        while tuner.step(&mut runner)?.is_some() {}
        plan.take_ran();
        runner.try_out()?;
        let ran = plan.take_ran();
        assert!(!ran.iter().any(|name| name.ends_with("_half")), "one token fills no tile");
        Ok(tuner.done().to_vec())
    };
    let exact = by(Numerics::Exact)?;
    let is_scalar =
        |product: &TunedProduct| product.shapes.iter().all(|m| m.shape.tier == Tier::Scalar);
    assert!(exact.iter().all(is_scalar), "nothing else may be chosen, and so nothing is measured");
    let fastest = by(Numerics::Fastest)?;
    let mut chosen = 0;
    for product in &fastest {
        let (default, best) = (&product.shapes[0], &product.shapes[product.chosen]);
        assert_eq!(default.shape.tier, Tier::Scalar);
        for measured in product.shapes.iter().filter(|m| m.shape.tier == Tier::Half) {
            assert!(product.tokens >= 16, "{product:?}");
            let wrong = measured.shape.tokens == 64;
            assert_eq!(matches!(measured.verdict, Verdict::Wrong(_)), wrong, "{product:?}");
        }
        if best.shape.tier == Tier::Half {
            chosen += 1;
            assert_eq!((best.nanoseconds, best.shape.tokens < 64), (11.0, true), "{product:?}");
        } else {
            assert!(product.tokens < 16, "{product:?}");
        }
    }
    assert!(chosen >= 5, "{fastest:?}");
    Ok(())
}

#[test]
fn products_with_experts_are_tuned_by_the_routes_of_an_expert() -> Result<(), Failure> {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/experts/qwen2moe.gguf");
    let plan = Plan::default();
    plan.set_times(times_for_halves);
    for numerics in [Numerics::Exact, Numerics::Fastest] {
        let executor = plan.open(ReferenceExecutor::with_lanes(8))?;
        let tune = tune_options_by(numerics, None, Duration::ZERO);
        let options = options(Some(tune.clone()));
        let mut runner = engine::open(executor, &model, &options, &mut |_, _| {})?.runner;
        let mut tuner = Tuner::new(tune);
        tuner.prepare(&mut runner);
        while tuner.step(&mut runner)?.is_some() {}
        let experts = |product: &&TunedProduct| product.kernel.contains("_experts");
        let mut found: Vec<(u64, Tier)> = Vec::new();
        for product in tuner.done().iter().filter(experts) {
            let chosen = &product.shapes[product.chosen];
            assert_eq!(chosen.verdict == Verdict::Right, chosen.shape.tier == Tier::Scalar);
            found.push((product.tokens, chosen.shape.tier));
        }
        found.sort_by_key(|(tokens, _)| *tokens);
        found.dedup();
        let wanted: Vec<(u64, Tier)> = [1, 2, 4, 8, 16, 32, 64]
            .map(|tokens| {
                let is_tiled = numerics == Numerics::Fastest && tokens >= 8;
                (tokens, if is_tiled { Tier::Half } else { Tier::Scalar })
            })
            .to_vec();
        assert_eq!(found, wanted, "{numerics:?}");
    }
    Ok(())
}

#[test]
fn an_engine_tunes_while_nobody_waits_and_its_tokens_stay() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let [model, _] = tiny::write(folder.path());
    let kept = folder.path().join("cache");
    let caps = ReferenceExecutor::new().capabilities().clone();
    let plan = Plan::default();
    plan.set_times(times);
    let start = |quiet: Duration| -> Result<_, Failure> {
        let options = options(Some(tune_options(Some(&kept), quiet)));
        let opener = plan.clone();
        let open = Box::new(move || opener.open(ReferenceExecutor::new()));
        let opened = engine::open_with(open, &model, &options, &mut |_, _| {})?;
        Ok(engine::start(opened, &options)?)
    };
    let (engine, thread) = start(Duration::from_secs(3600))?;
    let expected = play(&engine)?;
    join(engine, thread)?;
    assert_eq!(tuned_on(&caps, &kept, Numerics::Exact), [], "somebody waited lately");

    let (engine, thread) = start(Duration::ZERO)?;
    assert_eq!(play(&engine)?, expected);
    while tuned_on(&caps, &kept, Numerics::Exact).len() < 10 {
        std::thread::yield_now();
    }
    assert_eq!(play(&engine)?, expected, "while it is being tuned");
    while tuned_on(&caps, &kept, Numerics::Exact).len() < 20 {
        std::thread::yield_now();
    }
    assert_eq!(play(&engine)?, expected);
    join(engine, thread)
}

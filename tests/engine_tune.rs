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
use hob::reference::ReferenceExecutor;
use streams::{Failure, join, play};

fn tune_options(folder: Option<&Path>, quiet: Duration) -> TuneOptions {
    TuneOptions {
        reference: |lanes| Box::new(ReferenceExecutor::with_lanes(lanes)),
        numerics: Numerics::Exact,
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
    assert_eq!(tuned_on(&caps, &kept), products);
    assert_eq!(tune(&mut runner, Some(&kept))?, (products, 0));
    let other = Capabilities { driver: "another".into(), ..caps.clone() };
    assert_eq!(tuned_on(&other, &kept), []);
    for file in std::fs::read_dir(&kept)? {
        std::fs::write(file?.path(), "[]")?;
    }
    assert_eq!(tuned_on(&caps, &kept), [], "a damaged file is ignored");
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
    assert_eq!(tuned_on(&caps, &kept), [], "somebody waited lately");

    let (engine, thread) = start(Duration::ZERO)?;
    assert_eq!(play(&engine)?, expected);
    while tuned_on(&caps, &kept).len() < 10 {
        std::thread::yield_now();
    }
    assert_eq!(play(&engine)?, expected, "while it is being tuned");
    while tuned_on(&caps, &kept).len() < 20 {
        std::thread::yield_now();
    }
    assert_eq!(play(&engine)?, expected);
    join(engine, thread)
}

//! The tuner: the fastest right shape is chosen, whatever it is the tokens stay, and nobody waits
//! for it.

#[path = "common/faults.rs"]
mod faults;
#[path = "common/random.rs"]
mod random;
#[path = "common/spoofed.rs"]
mod spoofed;
#[path = "common/streams.rs"]
mod streams;
#[path = "idea/tiny.rs"]
mod tiny;

use std::path::Path;
use std::time::Duration;

use faults::Plan;
use hob::config::Numerics;
use hob::engine::{
    self, EngineOptions, Runner, TuneOptions, TunedWork, Tuner, Verdict, WorkSize, tuned_on,
};
use hob::gpu::{
    BufferDesc, BufferHandle, Capabilities, DeviceError, Dispatch, Executor, MatrixUnits,
};
use hob::kernels::attention_tiled::Cut;
use hob::kernels::matmul::{Tier, TileConfig};
use hob::kernels::tuned::{AnyTileConfig, Tile};
use hob::reference::ReferenceExecutor;
use spoofed::SpoofedDevice;
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

/// Rows of a lane, where it is a matmul.
fn rows(dispatch: &Dispatch) -> u32 {
    if dispatch.kernel.name.starts_with("matmul_") { dispatch.spec[3] } else { 0 }
}

/// Query heads of a workgroup and tokens of a tile, where it is attention.
fn tile(dispatch: &Dispatch) -> Option<[u32; 2]> {
    dispatch.kernel.name.starts_with("attention").then(|| [dispatch.spec[7], dispatch.spec[6]])
}

/// Fewer rows are faster; of attention fewer heads, and four tokens.
fn times(dispatch: &Dispatch) -> f64 {
    match tile(dispatch) {
        Some([heads, tokens]) => f64::from(100 * heads + tokens.abs_diff(4)),
        None => f64::from(100 * rows(dispatch)),
    }
}

/// The matmuls, by their tokens, with their shapes.
fn matmuls(works: &[TunedWork]) -> Vec<(u64, Vec<TileConfig>, &TunedWork)> {
    let of = |work: &'_ TunedWork| match work.size {
        WorkSize::Matmul { tokens, .. } => Some(tokens),
        WorkSize::Attention { .. } => None,
    };
    let shape = |shape: AnyTileConfig| match shape {
        AnyTileConfig::Matmul(shape) => shape,
        AnyTileConfig::Attention(tile) => panic!("{tile:?} of a matmul"),
    };
    let shapes = |work: &TunedWork| work.shapes.iter().map(|m| shape(m.shape)).collect();
    works.iter().filter_map(|work| Some((of(work)?, shapes(work), work))).collect()
}

/// Attention of single tokens, then of prompts: verdicts of the tiles, and the one chosen.
fn attention(works: &[TunedWork]) -> [(Vec<(Tile, &Verdict)>, Tile); 2] {
    [true, false].map(|single| {
        let is_it = |work: &&TunedWork| match work.size {
            WorkSize::Attention { one_token_each, narrow, .. } => {
                one_token_each == single && !narrow
            }
            WorkSize::Matmul { .. } => false,
        };
        let work = works.iter().find(is_it).expect("it is measured");
        let tiles: Vec<(Tile, &Verdict)> = (work.shapes.iter())
            .map(|measured| match measured.shape {
                AnyTileConfig::Attention(tile) => (tile, &measured.verdict),
                AnyTileConfig::Matmul(shape) => panic!("{shape:?} of attention"),
            })
            .collect();
        let chosen = tiles[work.chosen].0;
        (tiles, chosen)
    })
}

/// Tunes to the end; the matmuls, and how many steps it took.
fn tune(runner: &mut Runner, folder: Option<&Path>) -> Result<(Vec<TunedWork>, usize), Failure> {
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
    let (works, steps) = tune(&mut runner, Some(&kept))?;
    assert!(works.len() >= 7 && steps > works.len(), "{} {steps}", works.len());
    for (_, shapes, matmul) in matmuls(&works) {
        assert_eq!((shapes[matmul.chosen].rows, matmul.ratio()), (2, 0.5), "{matmul:?}");
        assert!(shapes.len() <= 11);
    }
    // Three query heads share a kv head.
    let tile = |heads, tile_tokens| Tile { tile_tokens, heads, matrix: None };
    let [(single, one), (prompts, many)] = attention(&works);
    assert_eq!((single[0].0, one), (tile(3, 1), tile(1, 1)));
    assert_eq!((prompts[0].0, many, prompts.len()), (tile(3, 2), tile(1, 4), 7));
    assert!(prompts.iter().chain(&single).all(|(_, verdict)| **verdict == Verdict::Right));
    let shape = runner.model().attention_shape(false, 32, 32);
    assert_eq!(shape.tile_tokens, 4, "batches are cut so");
    plan.take_ran();
    runner.try_out()?;
    let ran = plan.take_ran();
    let matmuls_ran: Vec<&String> = ran.iter().filter(|name| name.contains('[')).collect();
    let matmuls = || matmuls_ran.iter().filter(|name| name.starts_with("matmul_"));
    assert!(matmuls().count() > 2, "{ran:?}");
    assert!(matmuls().all(|name| name.contains("[8, 1, 1, 2,")), "{ran:?}");
    let attended: Vec<_> = ran.iter().filter(|name| name.starts_with("attention [")).collect();
    assert!(!attended.is_empty(), "{ran:?}");
    assert!(attended.iter().all(|name| name.ends_with(", 1, 1, 1, 0]")), "{ran:?}");

    // The next start knows it, on this device and on no other.
    let caps = runner.executor().capabilities().clone();
    assert_eq!(tuned_on(&caps, &kept, Numerics::Exact), works);
    assert_eq!(tune(&mut runner, Some(&kept))?, (works, 0));
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
    plan.set_wrong_where(|dispatch| rows(dispatch) == 8 || tile(dispatch) == Some([1, 8]));
    let mut runner = open(&model, &plan, 8)?;
    let (works, _) = tune(&mut runner, None)?;
    let mut wrong = 0;
    for (_, shapes, matmul) in matmuls(&works) {
        assert_ne!(shapes[matmul.chosen].rows, 8, "{matmul:?}");
        for (shape, measured) in shapes.iter().zip(&matmul.shapes) {
            let is_wrong = matches!(measured.verdict, Verdict::Wrong(_));
            assert_eq!(is_wrong, shape.rows == 8, "{matmul:?}");
            wrong += usize::from(is_wrong);
        }
    }
    assert!(wrong > 5, "{wrong}");
    let [_, (tiles, chosen)] = attention(&works);
    let fault = Tile { tile_tokens: 8, heads: 1, matrix: None };
    for (tile, verdict) in tiles {
        assert_eq!(matches!(verdict, Verdict::Wrong(_)), tile == fault, "{tile:?}");
    }
    assert_ne!(chosen, fault);
    Ok(())
}

/// Matmuls of many tokens are the fastest by halves.
fn times_for_halves(dispatch: &Dispatch) -> f64 {
    match dispatch.kernel.name {
        "quantize_x_f16" => 1.0,
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
    let by = |numerics: Numerics| -> Result<Vec<TunedWork>, Failure> {
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
    let mut shapes = matmuls(&exact).into_iter().flat_map(|(_, shapes, _)| shapes);
    assert!(
        shapes.all(|shape| shape.tier == Tier::Scalar),
        "nothing else may be chosen, and so nothing is measured"
    );
    let fastest = by(Numerics::Fastest)?;
    let mut chosen = 0;
    for (tokens, shapes, matmul) in matmuls(&fastest) {
        let best = shapes[matmul.chosen];
        assert_eq!(shapes[0].tier, Tier::Scalar);
        let measured = shapes.iter().zip(&matmul.shapes);
        for (shape, measured) in measured.filter(|(shape, _)| shape.tier == Tier::Half) {
            assert!(tokens >= 8, "fewer do not half fill a tile: {matmul:?}");
            let wrong = shape.tokens == 64;
            assert_eq!(matches!(measured.verdict, Verdict::Wrong(_)), wrong, "{matmul:?}");
        }
        if best.tier == Tier::Half {
            chosen += 1;
            let time = matmul.shapes[matmul.chosen].nanoseconds;
            assert_eq!((time, best.tokens < 64), (11.0, true), "{matmul:?}");
        } else {
            assert!(tokens < 8, "{matmul:?}");
        }
    }
    assert!(chosen >= 5, "{fastest:?}");
    Ok(())
}

/// Subgroups and positions of a block, where matrix units attend.
fn cut(dispatch: &Dispatch) -> Option<[u32; 2]> {
    let is_tiled = dispatch.kernel.name == "attention_tiled";
    is_tiled.then(|| [dispatch.spec[1], dispatch.spec[11]])
}

/// Of attention by matrix units the smallest tile is the fastest, then that of two subgroups with
/// short blocks; lanes are slower than any.
fn times_of_cuts(dispatch: &Dispatch) -> f64 {
    match cut(dispatch) {
        Some([1, _]) => 10.0,
        Some([2, 16]) => 20.0,
        Some(_) => 50.0,
        None => 100.0,
    }
}

/// Tunes attention, which comes before all matmuls, on a GPU with matrix units.
fn tune_attention(
    model: &Path,
    plan: &Plan,
    numerics: Numerics,
) -> Result<(Runner, Vec<TunedWork>), Failure> {
    let mut spoofed = SpoofedDevice::gpu(Box::new(ReferenceExecutor::with_lanes(8)), Tier::Matrix);
    let units = MatrixUnits { m: 16, n: 16, k: 16, subgroup: 32 };
    spoofed.capabilities.matrix_units = Some(units);
    let tune = tune_options_by(numerics, None, Duration::ZERO);
    let options = options(Some(tune.clone()));
    let mut runner = engine::open(plan.open(spoofed)?, model, &options, &mut |_, _| {})?.runner;
    let mut tuner = Tuner::new(tune);
    tuner.prepare(&mut runner);
    while matmuls(tuner.done()).is_empty() && tuner.step(&mut runner)?.is_some() {}
    Ok((runner, tuner.done().to_vec()))
}

#[test]
fn attention_by_matrix_units_is_tuned_where_narrower_numbers_are_allowed() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let [model, _] = tiny::write(folder.path());
    let plan = Plan::default();
    plan.set_times(times_of_cuts);
    plan.set_wrong_where(|dispatch| matches!(cut(dispatch), Some([1, _])));
    let is_reduced_precision =
        |work: &&TunedWork| matches!(work.size, WorkSize::Attention { narrow: true, .. });
    let (runner, works) = tune_attention(&model, &plan, Numerics::Exact)?;
    assert_eq!(works.iter().find(is_reduced_precision), None, "nothing of it may be chosen");
    assert_eq!(runner.model().attention_shape(false, 32, 32).matrix, None);

    let (runner, works) = tune_attention(&model, &plan, Numerics::Fastest)?;
    let work = works.iter().find(is_reduced_precision).expect("it is measured");
    let cuts: Vec<Option<Cut>> = (work.shapes.iter())
        .map(|measured| match measured.shape {
            AnyTileConfig::Attention(tile) => tile.matrix,
            AnyTileConfig::Matmul(shape) => panic!("{shape:?} of attention"),
        })
        .collect();
    assert_eq!((&*work.kernel, cuts.len()), ("attention_tiled", 7), "{work:?}");
    assert!(cuts[0].is_some_and(|cut| cut.subgroups == 4), "the largest, by rule: {work:?}");
    assert_eq!(cuts[6], None, "lanes compete");
    for (cut, measured) in cuts.iter().zip(&work.shapes) {
        let wrong = cut.is_some_and(|cut| cut.subgroups == 1);
        assert_eq!(matches!(measured.verdict, Verdict::Wrong(_)), wrong, "{work:?}");
    }
    let best = Cut { subgroups: 2, positions: 16, q_shared: false };
    assert_eq!((cuts[work.chosen], work.ratio()), (Some(best), 0.4), "{work:?}");
    let shape = |tokens| runner.model().attention_shape(false, tokens, 32);
    assert_eq!((shape(16).matrix, shape(15).matrix), (Some(best), None), "batches are cut so");

    // Where lanes are the fastest, they take long prompts too.
    plan.set_times(|dispatch| if cut(dispatch).is_some() { 100.0 } else { 50.0 });
    let (runner, _) = tune_attention(&model, &plan, Numerics::Fastest)?;
    assert_eq!(runner.model().attention_shape(false, 32, 32).matrix, None);
    Ok(())
}

#[test]
fn matmuls_with_experts_are_tuned_by_the_routes_of_an_expert() -> Result<(), Failure> {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/experts/qwen2moe.gguf");
    let plan = Plan::default();
    plan.set_times(times_for_halves);
    let executor = plan.open(ReferenceExecutor::with_lanes(8))?;
    let tune = tune_options_by(Numerics::Fastest, None, Duration::ZERO);
    let options = options(Some(tune.clone()));
    let mut runner = engine::open(executor, &model, &options, &mut |_, _| {})?.runner;
    let mut tuner = Tuner::new(tune);
    tuner.prepare(&mut runner);
    while tuner.step(&mut runner)?.is_some() {}
    let mut found: Vec<(u64, Tier)> = Vec::new();
    for (tokens, shapes, matmul) in matmuls(tuner.done()) {
        if matmul.kernel.contains("_experts") {
            let (tier, chosen) = (shapes[matmul.chosen].tier, &matmul.shapes[matmul.chosen]);
            assert_eq!(chosen.verdict == Verdict::Right, tier == Tier::Scalar);
            found.push((tokens, tier));
        }
    }
    found.sort_by_key(|(tokens, _)| *tokens);
    found.dedup();
    let of = |tokens: u64| (tokens, if tokens >= 8 { Tier::Half } else { Tier::Scalar });
    assert_eq!(found, [1, 2, 4, 8, 16, 32, 64].map(of));
    Ok(())
}

/// A device without room for attention's own pages.
struct Cramped {
    inner: Box<dyn Executor>,
}

impl Executor for Cramped {
    hob::delegate!(
        capabilities avoid destroy_buffer replace_buffer write read prepare release submit wait
        memory set_profiling timings
    );

    fn create_buffer(&mut self, desc: &BufferDesc) -> Result<BufferHandle, DeviceError> {
        if desc.label.starts_with("probe of attention") {
            let what = desc.label.clone();
            return Err(DeviceError::OutOfMemory { what, wanted_bytes: desc.bytes, free_bytes: 0 });
        }
        self.inner.create_buffer(desc)
    }
}

#[test]
fn what_there_is_no_room_for_is_not_measured_and_all_else_is() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let [model, _] = tiny::write(folder.path());
    let inner = Box::new(ReferenceExecutor::with_lanes(8));
    let executor = Box::new(Cramped { inner });
    let mut runner = engine::open(executor, &model, &options(None), &mut |_, _| {})?.runner;
    let (works, _) = tune(&mut runner, None)?;
    assert!(works.len() >= 5 && matmuls(&works).len() == works.len(), "{works:?}");
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

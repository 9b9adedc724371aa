//! Kernels that compute wrongly: they are found before anything is served, and safer ones take
//! their place.

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

use faults::{Call, Plan};
use hob::config::Numerics;
use hob::engine::{
    self, CheckOptions, CheckWhen, EngineHandle, EngineOptions, EngineThread, OpenError, Opened,
    TuneOptions,
};
use hob::gpu::{DeviceError, MatrixUnits};
use hob::kernels::matmul::Tier;
use hob::reference::ReferenceExecutor;
use spoofed::SpoofedDevice;
use streams::{Failure, join, play, status};

fn options(when: CheckWhen, folder: Option<&Path>) -> EngineOptions {
    EngineOptions {
        context_tokens: 96,
        kv_tokens: 288,
        sessions_max: 8,
        reopen_pause: Duration::ZERO,
        check: Some(CheckOptions {
            reference: |lanes| Box::new(ReferenceExecutor::with_lanes(lanes)),
            when,
            folder: folder.map(Path::to_owned),
        }),
        ..EngineOptions::default()
    }
}

/// A model on a device of the plan, checked.
fn open(model: &Path, plan: &Plan, options: &EngineOptions) -> Result<Opened, Failure> {
    let opener = plan.clone();
    let open = Box::new(move || opener.open(ReferenceExecutor::new()));
    Ok(engine::open_with(open, model, options, &mut |_, _| {})?)
}

fn start(
    model: &Path,
    plan: &Plan,
    when: CheckWhen,
) -> Result<(EngineHandle, EngineThread), Failure> {
    let options = options(when, None);
    Ok(engine::start(open(model, plan, &options)?, &options)?)
}

#[test]
fn a_wrong_kernel_is_replaced_and_named_and_the_tokens_stay_right() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    for (model, kernels) in tiny::write(folder.path())
        .iter()
        .zip([["matmul_f16", "attention", "qkv_post"], ["matmul_q8_0", "attention", "rms_norm"]])
    {
        let plan = Plan::default();
        let (engine, thread) = start(model, &plan, CheckWhen::Always)?;
        let expected = play(&engine)?;
        assert_eq!(status(&engine)?.kernel_faults, []);
        join(engine, thread)?;

        for kernel in kernels {
            let plan = Plan::default();
            plan.set_wrong(kernel);
            let (engine, thread) = start(model, &plan, CheckWhen::Never)?;
            assert_ne!(play(&engine)?, expected, "{kernel}: without the check, it shows");
            join(engine, thread)?;

            let (engine, thread) = start(model, &plan, CheckWhen::Always)?;
            plan.take_ran();
            assert_eq!(play(&engine)?, expected, "{kernel}");
            let ran = plan.take_ran();
            assert!(!ran.contains(kernel) && ran.contains(&format!("{kernel}_shared")), "{ran:?}");
            let faults = status(&engine)?.kernel_faults;
            let names: Vec<&str> = faults.iter().map(|fault| fault.kernel.as_str()).collect();
            assert_eq!(names, [kernel]);
            assert!(faults[0].difference.contains("wanted"), "{faults:?}");
            join(engine, thread)?;
        }
    }
    Ok(())
}

#[test]
fn a_kernel_without_a_safer_one_is_named_and_nothing_starts() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let [model, _] = tiny::write(folder.path());
    for kernels in [&["gather_rows"][..], &["attention", "attention_shared"]] {
        let plan = Plan::default();
        kernels.iter().for_each(|kernel| plan.set_wrong(kernel));
        let error = start(&model, &plan, CheckWhen::Auto).err().ok_or("it started")?;
        let last = kernels[kernels.len() - 1];
        match error.downcast_ref::<OpenError>() {
            Some(OpenError::Device(DeviceError::WrongKernel { kernel, device, difference })) => {
                assert_eq!((kernel.as_str(), device.as_str()), (last, "reference"));
                assert!(difference.contains("wanted"), "{difference}");
            }
            other => panic!("{other:?}"),
        }
    }
    Ok(())
}

#[test]
fn what_passed_is_not_probed_again_and_what_failed_stays_avoided() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let [model, _] = tiny::write(folder.path());
    let kept = folder.path().join("cache");
    let plan = Plan::default();
    plan.set_wrong("attention");
    // Submissions of the loading, and how often the device was opened for it.
    let load = |when: CheckWhen| -> Result<(u64, u64), Failure> {
        plan.set([]);
        let before = plan.opened();
        let options = options(when, Some(&kept));
        let opened = open(&model, &plan, &options)?;
        let counts = (plan.counts()[&Call::Submit], plan.opened() - before);
        let (engine, thread) = engine::start(opened, &options)?;
        assert_eq!(status(&engine)?.kernel_faults.len(), 1);
        join(engine, thread)?;
        Ok(counts)
    };
    let (first, second) = (load(CheckWhen::Auto)?, load(CheckWhen::Auto)?);
    assert_eq!((first.1, second.1), (2, 1), "it was opened again after the fault");
    assert_eq!(second, load(CheckWhen::Never)?, "nothing is probed");
    assert!(first.0 > second.0 + 10, "{first:?} {second:?}");
    let forced = load(CheckWhen::Always)?;
    assert_eq!(forced, first, "all is probed");
    for file in std::fs::read_dir(&kept)? {
        std::fs::write(file?.path(), "{")?;
    }
    assert_eq!(load(CheckWhen::Auto)?, first, "a damaged file is as none");
    Ok(())
}

#[test]
fn attention_is_checked_also_where_its_past_is_split() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let [model, _] = tiny::write(folder.path());
    let kept = folder.path().join("cache");
    let short = options(CheckWhen::Auto, Some(&kept));
    let deep = EngineOptions { context_tokens: 600, kv_tokens: 1200, ..short.clone() };
    // The last constant says whether splits are joined.
    let passed = |options: &EngineOptions| -> Result<Vec<bool>, Failure> {
        open(&model, &Plan::default(), options)?;
        let mut found = Vec::new();
        for file in std::fs::read_dir(&kept)? {
            let text = std::fs::read_to_string(file?.path())?;
            let pipelines = text.split('"').filter(|name| name.starts_with("attention "));
            found.extend(pipelines.map(|name| name.ends_with(",1")));
        }
        Ok(found)
    };
    let of_short = passed(&short)?;
    assert!(!of_short.is_empty() && !of_short.contains(&true), "{of_short:?}");
    let of_deep = passed(&deep)?;
    assert!(of_deep.contains(&true), "{of_deep:?}");
    Ok(())
}

#[test]
fn prompts_attend_by_matrix_units_unless_these_compute_wrongly() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let [model, _] = tiny::write(folder.path());
    let tune = TuneOptions {
        reference: |lanes| Box::new(ReferenceExecutor::with_lanes(lanes)),
        numerics: Numerics::Fastest,
        folder: None,
        measure: false,
        quiet: Duration::ZERO,
    };
    let options = EngineOptions { tune: Some(tune), ..options(CheckWhen::Always, None) };
    let units = MatrixUnits { m: 16, n: 16, k: 16, subgroup: 32 };
    for wrong in [None, Some("attention_tiled")] {
        let plan = Plan::default();
        wrong.iter().for_each(|kernel| plan.set_wrong(kernel));
        let opener = plan.clone();
        let open = Box::new(move || {
            let mut gpu =
                SpoofedDevice::gpu(Box::new(ReferenceExecutor::with_lanes(32)), Tier::Matrix);
            gpu.capabilities.matrix_units = Some(units);
            opener.open(gpu)
        });
        let opened = engine::open_with(open, &model, &options, &mut |_, _| {})?;
        let (engine, thread) = engine::start(opened, &options)?;
        plan.take_ran();
        play(&engine)?;
        assert_eq!(plan.take_ran().contains("attention_tiled"), wrong.is_none());
        let faults = status(&engine)?.kernel_faults;
        let names: Vec<&str> = faults.iter().map(|fault| fault.kernel.as_str()).collect();
        assert_eq!(names, wrong.as_slice());
        join(engine, thread)?;
    }
    Ok(())
}

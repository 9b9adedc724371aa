//! `hob bench --load`, on a device of the tests.
#![allow(clippy::unwrap_used)]

mod cli_support;
#[path = "common/random.rs"]
mod random;
#[path = "idea/tiny.rs"]
mod tiny;

use cli_support::{hob, stderr, stdout};
use serde_json::Value;

#[test]
fn loading_is_measured_part_by_part() {
    let folder = tempfile::tempdir().unwrap();
    let [model, _] = tiny::write(folder.path());
    let model = model.to_str().unwrap();
    let mut command = hob(&["bench", "--load", "--force", "--json", "-r", "1", "--model", model]);
    let output = command.env("XDG_CACHE_HOME", folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let report: Value = serde_json::from_str(stdout(&output)).unwrap();
    let number = |value: &Value| value.as_f64().unwrap();
    let times = &report["milliseconds"];
    let parts = ["device", "text", "weights", "pipelines", "first_token"];
    for name in ["read", "copy"].iter().chain(&parts) {
        assert!(number(&times[*name]) > 0.0, "{name} of {times}");
    }
    // Of a single round, medians are the times themselves.
    let close = |found: f64, wanted: f64| assert!((found - wanted).abs() < 1e-6, "{report}");
    let start = number(&times["start"]);
    close(parts.iter().map(|name| number(&times[*name])).sum(), start);
    close(number(&report["load_ratio"]), number(&times["weights"]) / number(&times["copy"]));
    close(number(&report["start_over_read"]), start - number(&times["read"]));
    let bytes = report["bytes"].as_u64().unwrap();
    assert!((1..std::fs::metadata(model).unwrap().len()).contains(&bytes));
}

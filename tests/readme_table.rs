//! README.md's table of architectures and list of tensor types are those of the code.
#![allow(clippy::unwrap_used)] // what stops the test from reading README.md is a failure

use std::fmt::Write;
use std::path::Path;

use hob::model::FAMILIES;
use hob::tensor::DType;

const FIRST: &str = "<!-- made from the code: BLESS=1 cargo test --test readme_table -->\n";
const LAST: &str = "<!-- up to here -->\n";

/// What stands between the marks.
fn table() -> String {
    let mut out = String::from("\n| architecture | models | distinguishing features |\n");
    out.push_str("|---|---|---|\n");
    for family in FAMILIES {
        let [name, models, features] = [family.architecture, family.models, family.features];
        writeln!(out, "| {name} | {models} | {features} |").unwrap();
    }
    let types = DType::ALL.map(|dtype| dtype.name()).join(", ");
    write!(out, "\nTensors of the types {types}, for every architecture.\n\n").unwrap();
    out
}

#[test]
fn the_readme_lists_what_the_code_supports() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(FIRST).expect("README.md has the first mark");
    let (found, after) = rest.split_once(LAST).expect("README.md has the last mark");
    let wanted = table();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, format!("{before}{FIRST}{wanted}{LAST}{after}")).unwrap();
        return;
    }
    assert_eq!(found, wanted, "make it anew: BLESS=1 cargo test --test readme_table");
}

#[test]
fn architectures_have_one_family_each_and_say_what_they_are() {
    for (index, family) in FAMILIES.iter().enumerate() {
        let name = family.architecture;
        assert!(!FAMILIES[..index].iter().any(|other| other.architecture == name), "{name} twice");
        assert!(!name.is_empty() && !family.models.is_empty() && !family.features.is_empty());
        assert!(hob::model::family(name).is_some());
    }
}

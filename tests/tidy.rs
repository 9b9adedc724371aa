//! Holds the repository to its own rules: layers, unsafe code, shaders and twins, sizes, words.
//!
//! Each test lists everything that breaks its rule, with file and line, and what to do about it.
//! CONTRIBUTING.md has the reasons.

// What stops these tests from reading the repository is a failure, and says so.
#![allow(clippy::unwrap_used)]

#[path = "tidy/layers.rs"]
mod layers;
#[path = "tidy/source.rs"]
mod source;

use std::path::{Path, PathBuf};

use source::Source;

/// A file splits by then; most stay under 300.
const FILE_LINES_MAX: usize = 500;
/// A function fits one screen.
const FUNCTION_LINES_MAX: usize = 70;
/// rustfmt breaks code there, but neither comments nor shaders.
const COLUMNS_MAX: usize = 100;

/// What each shader's header states after its first line.
const SHADER_HEADER_FIELDS: [&str; 4] = ["Dispatch", "Binding", "Needs", "Numerics"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files under a folder whose name ends so, sorted; none if there is no such folder.
fn files_under(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn sources() -> Vec<Source> {
    let sources: Vec<_> = files_under("src", ".rs").iter().map(|p| Source::read(p)).collect();
    assert!(!sources.is_empty(), "no sources under {}", root().join("src").display());
    sources
}

/// Shaders that are compiled, without what they include.
fn shaders() -> Vec<PathBuf> {
    let shaders = files_under("shaders", ".comp");
    assert!(!shaders.is_empty(), "no shaders under {}", root().join("shaders").display());
    shaders
}

fn name(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

fn report(rule: &str, offences: &[String]) {
    assert!(offences.is_empty(), "\n{rule}\n  {}\n", offences.join("\n  "));
}

#[test]
fn imports_point_down() {
    let lib = std::fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let table = layers::Table::parse(&lib);
    let sources = sources();
    let mut offences = Vec::new();
    let mut sideways = Vec::new();
    for source in sources.iter().filter(|source| !source.is_test()) {
        let Some(from) = layers::module_of(&source.path, root()) else { continue };
        if !table.knows(&from) {
            offences.push(format!("{}: `{from}` has no layer", name(&source.path)));
            continue;
        }
        for import in layers::imports(source, root()) {
            let place = format!("{}:{}", name(&source.path), import.line);
            match table.judge(&from, &import.module) {
                layers::Verdict::Down => {}
                layers::Verdict::Sideways => sideways.push((from.clone(), import.module, place)),
                layers::Verdict::Up(why) => {
                    offences.push(format!("{place}: `{from}` imports `{}`: {why}", import.module));
                }
            }
        }
    }
    for (from, to, place) in &sideways {
        if sideways.iter().any(|(other_from, other_to, _)| other_from == to && other_to == from) {
            offences.push(format!("{place}: `{from}` and `{to}` import each other"));
        }
    }
    report(
        "Imports point down only, by the table at the top of src/lib.rs. Move the shared type \
         down, or pass what is needed in from above:",
        &offences,
    );
}

#[test]
fn unsafe_code_stands_under_src_vulkan() {
    let mut all = sources();
    all.push(Source::read(&root().join("build.rs")));
    let offences: Vec<String> = all
        .iter()
        .filter(|source| !source.path.starts_with(root().join("src/vulkan")))
        .flat_map(|source| {
            let lines = source.lines_with_word("unsafe");
            lines.into_iter().map(|line| format!("{}:{line}", name(&source.path)))
        })
        .collect();
    report("`unsafe` stands only under src/vulkan/:", &offences);
}

#[test]
fn every_shader_has_its_rust_file_and_its_twin() {
    let mut offences = Vec::new();
    for shader in shaders() {
        let stem = shader.file_stem().unwrap().to_string_lossy().into_owned();
        for (folder, what) in [("src/kernels", "parameters and grid"), ("src/reference", "twin")] {
            let file = format!("{folder}/{stem}.rs");
            if !root().join(&file).is_file() {
                offences.push(format!("{}: {file} ({what}) is missing", name(&shader)));
            }
        }
    }
    report("One stem for a shader, its Rust file and its twin:", &offences);
}

#[test]
fn every_shader_opens_with_its_header() {
    let mut offences = Vec::new();
    for shader in shaders() {
        let text = std::fs::read_to_string(&shader).unwrap();
        let stem = shader.file_stem().unwrap().to_string_lossy().into_owned();
        let header: Vec<&str> =
            text.lines().map_while(|line| line.strip_prefix("//")).map(str::trim).collect();
        if !header.first().is_some_and(|line| line.starts_with(&format!("{stem}: "))) {
            offences.push(format!("{}:1: wanted `// {stem}: WHAT IT DOES`", name(&shader)));
        }
        for field in SHADER_HEADER_FIELDS {
            if !header.iter().any(|line| line.starts_with(field)) {
                offences.push(format!("{}: the header has no `// {field}`", name(&shader)));
            }
        }
    }
    report("A shader's first lines say what it does, and how it is dispatched:", &offences);
}

#[test]
fn files_and_functions_stay_short() {
    let mut offences = Vec::new();
    let mut files = files_under("src", ".rs");
    files.extend(files_under("tests", ".rs"));
    files.extend(files_under("shaders", ""));
    files.push(root().join("build.rs"));
    for file in &files {
        let source = Source::read(file);
        let lines = source.text.lines().count();
        if lines > FILE_LINES_MAX {
            offences.push(format!("{}: {lines} lines, of {FILE_LINES_MAX}", name(file)));
        }
        for (number, line) in source.text.lines().enumerate() {
            let columns = line.chars().count();
            // A string that cannot be broken is left to its author.
            if columns > COLUMNS_MAX && !line.contains('"') && !line.contains("://") {
                let place = format!("{}:{}", name(file), number + 1);
                offences.push(format!("{place}: {columns} columns, of {COLUMNS_MAX}"));
            }
        }
        if file.extension().is_some_and(|extension| extension == "rs") {
            for (line, function, length) in source.functions() {
                if length > FUNCTION_LINES_MAX {
                    let place = format!("{}:{line}", name(file));
                    offences.push(format!("{place}: `{function}` has {length} lines"));
                }
            }
        }
    }
    report(
        &format!("At most {FILE_LINES_MAX} lines a file, {FUNCTION_LINES_MAX} a function:"),
        &offences,
    );
}

#[test]
fn every_module_opens_with_its_job() {
    let offences: Vec<String> = sources()
        .iter()
        .filter(|source| !source.is_test() && !source.text.starts_with("//!"))
        .map(|source| name(&source.path))
        .collect();
    report("A module opens with `//!`: its job, what it owns, what it must not know:", &offences);
}

/// Files of the repository that hold text: what git tracks, or all but build output without git.
fn committed_texts() -> Vec<(PathBuf, String)> {
    let listed = std::process::Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output();
    let paths: Vec<PathBuf> = match listed {
        Ok(output) if output.status.success() => String::from_utf8(output.stdout)
            .unwrap()
            .split_terminator('\0')
            .map(|path| root().join(path))
            .collect(),
        _ => ["src", "shaders", "tests", "config", "systemd"]
            .iter()
            .flat_map(|folder| files_under(folder, ""))
            .collect(),
    };
    let texts = paths.into_iter().filter_map(|path| {
        let text = std::fs::read_to_string(&path).ok()?;
        Some((path, text))
    });
    texts.collect()
}

#[test]
fn nothing_is_left_undone_or_ignored() {
    // Written apart, since this file is read too.
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("#[ig", "nore")];
    let mut offences = Vec::new();
    for (path, text) in committed_texts() {
        for (number, line) in text.lines().enumerate() {
            for mark in marks.iter().filter(|mark| line.contains(*mark)) {
                offences.push(format!("{}:{}: {mark}", name(&path), number + 1));
            }
        }
    }
    report("No unfinished parts and no ignored tests (a plan goes to an issue):", &offences);
}

#[test]
fn no_file_names_a_machine() {
    let mut marks: Vec<String> =
        ["work", "root"].iter().map(|folder| format!("/{folder}/")).collect();
    marks.extend(["deb.debian", "pypi", "npmjs", "pythonhosted"].map(|host| format!("{host}.org")));
    let mut offences = Vec::new();
    for (path, text) in committed_texts() {
        // Locked dependencies name their registry.
        if path.ends_with("Cargo.lock") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            for mark in marks.iter().filter(|mark| names_a_place(line, mark)) {
                offences.push(format!("{}:{}: {mark}", name(&path), number + 1));
            }
        }
    }
    report("No path of one machine, and no address of a registry or mirror:", &offences);
}

/// A path counts from its root only: `docs/home/` is none.
fn names_a_place(line: &str, mark: &str) -> bool {
    line.match_indices(mark).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        !mark.starts_with('/')
            || !before.is_some_and(|c| c.is_alphanumeric() || "._-})/*~".contains(c))
    })
}

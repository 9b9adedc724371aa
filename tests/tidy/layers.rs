//! The layer table of `src/lib.rs`, and what a file imports.

use std::path::Path;

use super::source::{Source, words};

/// Which module may import which.
pub(crate) struct Table {
    /// From the top; modules on one line are neighbours.
    lines: Vec<Vec<String>>,
    /// Modules beside the lines, and all that each may import.
    beside: Vec<(String, Vec<String>)>,
    /// Modules that import nothing, and that all may import.
    leaves: Vec<String>,
}

/// What the table says of an import.
pub(crate) enum Verdict {
    /// It may.
    Down,
    /// It may, as long as the neighbour does not import it.
    Sideways,
    /// It may not, for this reason.
    Up(String),
}

impl Table {
    /// Reads the table out of the crate's documentation.
    pub(crate) fn parse(lib: &str) -> Self {
        let mut table = Self { lines: Vec::new(), beside: Vec::new(), leaves: Vec::new() };
        let block = lib.lines().map(|line| line.trim_start_matches("//!").trim());
        for line in block.skip_while(|line| *line != "```text").skip(1) {
            if line == "```" {
                break;
            }
            if let Some((module, rest)) = line.split_once("-> ") {
                let (imports, _) = rest.split_once("  ").unwrap_or((rest, ""));
                let imports = imports.split(',').map(|import| import.trim().to_owned());
                table.beside.push((module.trim().to_owned(), imports.collect()));
                continue;
            }
            let (modules, about) = line.split_once("  ").unwrap_or((line, ""));
            let modules = modules.split_whitespace().map(str::to_owned);
            match about.trim() == "leaves" {
                true => table.leaves.extend(modules),
                false => table.lines.push(modules.collect()),
            }
        }
        table.lines.retain(|line| !line.is_empty());
        let complete = table.lines.len() > 5 && table.beside.len() == 3 && !table.leaves.is_empty();
        assert!(complete, "the table at the top of src/lib.rs is not as this test reads it");
        table
    }

    /// Whether a module stands in the table.
    pub(crate) fn knows(&self, module: &str) -> bool {
        self.line_of(module).is_some() || self.is_beside(module) || self.is_leaf(module)
    }

    fn line_of(&self, module: &str) -> Option<usize> {
        self.lines.iter().position(|line| line.iter().any(|other| other == module))
    }

    fn is_beside(&self, module: &str) -> bool {
        self.beside.iter().any(|(other, _)| other == module)
    }

    fn is_leaf(&self, module: &str) -> bool {
        self.leaves.iter().any(|other| other == module)
    }

    /// Whether `from` may import `to`.
    pub(crate) fn judge(&self, from: &str, to: &str) -> Verdict {
        if from == to {
            return Verdict::Down;
        }
        if self.is_leaf(from) {
            return Verdict::Up(format!("`{from}` is a leaf and imports nothing"));
        }
        if self.is_leaf(to) {
            return Verdict::Down;
        }
        if let Some((_, imports)) = self.beside.iter().find(|(other, _)| other == from) {
            return match imports.iter().any(|import| import == to) {
                true => Verdict::Down,
                false => Verdict::Up(format!("it may import {} only", imports.join(", "))),
            };
        }
        let from_line = self.line_of(from);
        if self.is_beside(to) {
            return match from_line {
                Some(0) => Verdict::Down,
                _ => Verdict::Up("it is used at the top alone".to_owned()),
            };
        }
        match (from_line, self.line_of(to)) {
            (Some(from), Some(to)) if from < to => Verdict::Down,
            (Some(from), Some(to)) if from == to => Verdict::Sideways,
            (Some(_), Some(_)) => Verdict::Up("it stands above".to_owned()),
            _ => Verdict::Up("it has no layer".to_owned()),
        }
    }
}

/// The module of the crate's root that a file belongs to; none for the root and the binaries.
pub(crate) fn module_of(path: &Path, root: &Path) -> Option<String> {
    let inside = path.strip_prefix(root.join("src")).ok()?;
    let first = inside.components().next()?.as_os_str().to_string_lossy().into_owned();
    let module = first.strip_suffix(".rs").unwrap_or(&first).to_owned();
    (module != "bin" && module != "lib").then_some(module)
}

/// An import of a module of the crate's root.
pub(crate) struct Import {
    /// Its line, from 1.
    pub(crate) line: usize,
    /// The module's name.
    pub(crate) module: String,
}

/// Every module of the root that a file names by `crate::` or climbs to by `super::`.
pub(crate) fn imports(source: &Source, root: &Path) -> Vec<Import> {
    let code = &source.code;
    let mut found = Vec::new();
    for start in words(code, "crate") {
        let Some(rest) = code[start + "crate".len()..].trim_start().strip_prefix("::") else {
            continue;
        };
        let line = source.line_of(start);
        found.extend(first_names(rest).into_iter().map(|module| Import { line, module }));
    }
    // `super` in a file of this depth, counted as often, is the root.
    let depth = module_depth(&source.path, root);
    let to_root = "super::".repeat(depth);
    for (start, _) in code.match_indices(&to_root).filter(|_| depth > 1) {
        let line = source.line_of(start);
        let names = first_names(&code[start + to_root.len()..]);
        found.extend(names.into_iter().map(|module| Import { line, module }));
    }
    // Items of the root itself, like a macro's name, are no modules.
    found.retain(|import| import.module.chars().next().is_some_and(char::is_lowercase));
    found.retain(|import| root.join("src").join(&import.module).is_dir());
    found
}

/// How many times `super` leads from a file's module to the root.
fn module_depth(path: &Path, root: &Path) -> usize {
    let inside = path.strip_prefix(root.join("src")).unwrap_or(path);
    let folders = inside.components().count() - 1;
    if path.file_name().is_some_and(|file| file == "mod.rs") { folders } else { folders + 1 }
}

/// The first name of a path, or those of each path in a group.
fn first_names(path: &str) -> Vec<String> {
    let name = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let Some(group) = path.trim_start().strip_prefix('{') else { return vec![name(path)] };
    let mut names = vec![name(group)];
    let mut depth = 1_usize;
    for (offset, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => names.push(name(&group[offset + 1..])),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names
}

#[test]
fn names_of_a_group_are_its_first() {
    assert_eq!(first_names("gpu::Recording;"), ["gpu"]);
    assert_eq!(first_names("{gpu::{A, B}, tensor::C};"), ["gpu", "tensor"]);
}

#[test]
fn the_table_says_no_to_what_points_up() {
    let lib = include_str!("../../src/lib.rs");
    let table = Table::parse(lib);
    let may = |from, to| !matches!(table.judge(from, to), Verdict::Up(_));
    assert!(may("cli", "vulkan") && may("server", "protocol") && may("model", "gpu"));
    assert!(may("vulkan", "gpu") && may("reference", "kernels") && may("engine", "config"));
    assert!(!may("gpu", "model") && !may("engine", "vulkan") && !may("vulkan", "kernels"));
    assert!(!may("config", "gpu") && !may("tensor", "gpu"));
}

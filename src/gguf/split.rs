//! Models in several files, `NAME-00001-of-00003.gguf` and so on, as `gguf-split` writes them.
//!
//! Each part is a GGUF file of its own; the first has the metadata. `split.no` counts from 0.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::{GgufError, GgufFault, plain};
use super::header::{self, Header};
use super::metadata::Metadata;
use super::source::Source;

/// Most parts of a model: each is an open file, of which a process may have 1024.
const PARTS_MAX: u32 = 512;

/// Which part of how many a file says that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Split {
    no: u32,
    count: u32,
}

impl Split {
    /// None for a file that is whole.
    fn of(metadata: &Metadata) -> Result<Option<Self>, GgufError> {
        let count = metadata.opt_u32("split.count")?.unwrap_or(1);
        if count <= 1 {
            return Ok(None);
        }
        Ok(Some(Self { no: metadata.u32("split.no")?, count }))
    }

    fn ending(self) -> String {
        format!("-{:05}-of-{:05}.gguf", u64::from(self.no) + 1, self.count)
    }

    /// Paths of all parts of a split model, one of which is at `path`.
    fn paths(self, path: &Path) -> Result<Vec<PathBuf>, GgufFault> {
        let found = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if self.no >= self.count || self.count > PARTS_MAX {
            return Err(GgufFault::SplitCount { no: self.no, count: self.count, limit: PARTS_MAX });
        }
        let Some(name) = found.strip_suffix(&self.ending()) else {
            let wanted = format!("NAME{}", self.ending());
            return Err(GgufFault::SplitName { wanted, found: plain(&found) });
        };
        let part = |no| path.with_file_name(format!("{name}{}", Self { no, ..self }.ending()));
        Ok((0..self.count).map(part).collect())
    }
}

impl std::fmt::Display for Split {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "part {} of {}", u64::from(self.no) + 1, self.count)
    }
}

/// One file of a model.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) path: Arc<Path>,
    pub(super) source: Source,
}

/// Opens the file at `path` and, where it is a part of a model, the others; the header is that of
/// the whole.
pub(super) fn open(path: &Path) -> Result<(Vec<Part>, Header), GgufError> {
    let named = open_part(path)?;
    let Some(split) = Split::of(&named.1.metadata)? else {
        return Ok((vec![named.0], named.1));
    };
    let paths = split.paths(path).map_err(|fault| GgufError::new(&named.0.path, fault))?;
    let mut named = Some(named);
    let mut parts = Vec::new();
    let mut whole: Option<Header> = None;
    for (no, path) in (0..).zip(&paths) {
        let wanted = Split { no, ..split };
        let opened = if no == split.no { named.take() } else { None };
        let (part, header) = match opened {
            Some(opened) => opened,
            None => open_part(path).map_err(|error| missing(error, wanted))?,
        };
        let found = Split::of(&header.metadata)?;
        if found != Some(wanted) {
            let found = found.map_or_else(|| "a whole file".to_owned(), |found| found.to_string());
            let fault = GgufFault::SplitPart { wanted: wanted.to_string(), found };
            return Err(GgufError::new(&part.path, fault));
        }
        match &mut whole {
            None => whole = Some(header),
            Some(whole) => join(whole, header, parts.len(), &part.path)?,
        }
        parts.push(part);
    }
    let whole = whole.expect("a split model has more than one part");
    check_count(&whole, &parts[0].path)?;
    Ok((parts, whole))
}

fn open_part(path: &Path) -> Result<(Part, Header), GgufError> {
    let path: Arc<Path> = path.into();
    let source = Source::open(&path).map_err(|fault| GgufError::new(&path, fault))?;
    let header = header::read(&source, &path).map_err(|fault| GgufError::new(&path, fault))?;
    Ok((Part { path, source }, header))
}

/// Says of a part that is not there what it would have been.
fn missing(error: GgufError, wanted: Split) -> GgufError {
    match error.fault {
        GgufFault::Open { error: cause } if cause.kind() == io::ErrorKind::NotFound => {
            let fault = GgufFault::SplitMissing { wanted: wanted.to_string() };
            GgufError::new(&error.path, fault)
        }
        _ => error,
    }
}

/// Appends a part's tensors to those of the parts before it.
fn join(
    whole: &mut Header,
    header: Header,
    part: usize,
    path: &Arc<Path>,
) -> Result<(), GgufError> {
    let names: HashSet<&str> = whole.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    if let Some(twice) = header.tensors.iter().find(|t| names.contains(t.name.as_str())) {
        let fault = GgufFault::DuplicateTensor { tensor: plain(&twice.name) };
        return Err(GgufError::new(path, fault));
    }
    whole.tensors.extend(header.tensors.into_iter().map(|tensor| tensor.in_part(part)));
    Ok(())
}

fn check_count(whole: &Header, path: &Arc<Path>) -> Result<(), GgufError> {
    let wanted = whole.metadata.u64("split.tensors.count")?;
    let found = whole.tensors.len() as u64;
    if wanted == found {
        return Ok(());
    }
    Err(GgufError::new(path, GgufFault::SplitTensors { wanted, found }))
}

/// Refuses a part where its siblings cannot be looked for.
pub(super) fn refuse_part(header: &Header) -> Result<(), GgufFault> {
    match Split::of(&header.metadata) {
        Ok(Some(split)) => Err(GgufFault::SplitMemory { part: split.to_string() }),
        Ok(None) => Ok(()),
        Err(error) => Err(error.fault),
    }
}

//! Models in several files: all parts are found by any of them, checked, and read.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use hob::gguf::{GgufBuilder, GgufFile, Value};
use hob::tensor::DType;
use tempfile::TempDir;

/// A part with one tensor of four floats, all `no`.
fn part(no: u16, count: u16, tensors: i32) -> GgufBuilder {
    let data = f32::from(no).to_le_bytes().repeat(4);
    let part = GgufBuilder::new()
        .metadata("split.no", Value::U16(no))
        .metadata("split.count", Value::U16(count))
        .metadata("split.tensors.count", Value::I32(tensors))
        .tensor(&format!("{no}.weight"), DType::F32, &[4], &data);
    if no == 0 { part.metadata("general.name", "split") } else { part }
}

/// A folder with a model of three parts.
fn model() -> (TempDir, [PathBuf; 3]) {
    let folder = TempDir::new().unwrap();
    let paths = [0, 1, 2].map(|no: u16| {
        let path = folder.path().join(format!("m-{:05}-of-00003.gguf", no + 1));
        fs::write(&path, part(no, 3, 3).build()).unwrap();
        path
    });
    (folder, paths)
}

fn refusal(path: &Path) -> String {
    GgufFile::open(path).unwrap_err().to_string()
}

#[test]
fn any_part_opens_the_whole_model() {
    let (_folder, paths) = model();
    for path in &paths {
        let file = GgufFile::open(path).unwrap();
        assert_eq!(file.metadata().str("general.name").unwrap(), "split");
        assert_eq!(file.path(), paths[0]);
        assert_eq!(file.part_paths().collect::<Vec<_>>(), paths);
        let size: u64 = paths.iter().map(|path| fs::metadata(path).unwrap().len()).sum();
        assert_eq!(file.file_bytes(), size);
        for no in 0..3_u16 {
            let tensor = file.tensor(&format!("{no}.weight")).unwrap();
            let mut value = [0; 4];
            file.read_tensor(tensor, 4, &mut value).unwrap();
            assert_eq!(f32::from_le_bytes(value), f32::from(no));
        }
    }
}

#[test]
fn a_missing_part_is_named() {
    let (_folder, paths) = model();
    fs::remove_file(&paths[1]).unwrap();
    let wanted = format!(
        "{}: no such file; wanted part 2 of 3 of a split model, whose other parts are here",
        paths[1].display()
    );
    assert_eq!(refusal(&paths[0]), wanted);
    assert_eq!(refusal(&paths[2]), wanted);
}

#[test]
fn a_part_that_is_another_is_named() {
    let (_folder, paths) = model();
    fs::copy(&paths[0], &paths[2]).unwrap();
    let wanted = ": wanted part 3 of 3 of a split model, found part 1 of 3";
    assert_eq!(refusal(&paths[0]), format!("{}{wanted}", paths[2].display()));
    fs::write(&paths[2], part(2, 4, 3).build()).unwrap();
    assert!(refusal(&paths[0]).ends_with("found part 3 of 4"));
    fs::write(&paths[2], GgufBuilder::new().build()).unwrap();
    assert!(refusal(&paths[0]).ends_with("found a whole file"));
}

#[test]
fn tensors_are_counted_and_stand_once() {
    let (_folder, paths) = model();
    fs::write(&paths[0], part(0, 3, 5).build()).unwrap();
    assert!(refusal(&paths[2]).ends_with("wanted 5 tensors in all parts, found 3"));
    let twice = part(2, 3, 3).tensor("1.weight", DType::F32, &[1], &[0; 4]);
    fs::write(&paths[2], twice.build()).unwrap();
    let wanted = format!("{}: tensor 1.weight stands twice", paths[2].display());
    assert_eq!(refusal(&paths[0]), wanted);
}

#[test]
fn a_part_by_another_name_is_refused() {
    let (folder, paths) = model();
    let renamed = folder.path().join("model.gguf");
    fs::copy(&paths[1], &renamed).unwrap();
    assert!(refusal(&renamed).ends_with(
        "a part of a split model named model.gguf; wanted NAME-00002-of-00003.gguf, \
             to find the other parts by"
    ));
    fs::write(&renamed, part(3, 3, 3).build()).unwrap();
    assert!(refusal(&renamed).contains("split.no 3 of split.count 3"));
    let whole = GgufBuilder::new().metadata("split.count", Value::U16(1)).build();
    fs::write(&renamed, whole).unwrap();
    GgufFile::open(&renamed).unwrap();
}

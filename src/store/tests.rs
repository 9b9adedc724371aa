//! The store without a network: names, the manifest, files of this machine.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::gguf::GgufBuilder;
use crate::tensor::DType;

fn model() -> Vec<u8> {
    GgufBuilder::new()
        .metadata("general.architecture", "llama")
        .metadata("llama.context_length", 64u32)
        .tensor("t", DType::F32, &[8, 4], &[0; 128])
        .build()
}

fn pull_file(
    store: &Store,
    path: &Path,
    change: impl FnOnce(&mut PullOptions),
) -> Result<Pulled, StoreError> {
    let mut options = PullOptions::default();
    change(&mut options);
    pull(store, &Source::File(path.to_owned()), &options, &mut |_| {})
}

/// A store, and a folder with a model file beside it.
fn setting() -> (tempfile::TempDir, Store, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path().join("models"));
    let file = folder.path().join("Tiny-F32.gguf");
    fs::write(&file, model()).unwrap();
    (folder, store, file)
}

#[test]
fn a_copied_model_is_found_by_name_and_alias_and_removed_with_its_files() {
    let (_folder, store, file) = setting();
    assert_eq!(store.default_model().unwrap(), None);
    let pulled = pull_file(&store, &file, |options| options.aliases = vec!["t".into()]).unwrap();
    let entry = pulled.entry;
    assert_eq!((entry.name.as_str(), entry.bytes()), ("tiny-f32", model().len() as u64));
    let facts = Facts {
        architecture: "llama".into(),
        quantization: "F32".into(),
        parameters: 32,
        context_tokens: 64,
        is_adapter: false,
    };
    assert_eq!(entry.facts, facts);
    let place = store.folder().join("tiny-f32/Tiny-F32.gguf");
    assert_eq!(fs::read(&place).unwrap(), model());
    for name in ["tiny-f32", "t"] {
        assert_eq!(store.locate(Path::new(name)).unwrap(), place);
    }
    assert_eq!(store.default_model().unwrap(), Some(place.clone()));
    assert_eq!(store.locate(&file).unwrap(), file);
    assert_eq!(store.remove("t").unwrap(), entry);
    assert!(!place.exists() && file.exists() && store.models().unwrap().is_empty());
    let told = store.locate(Path::new("t")).unwrap_err().to_string();
    assert_eq!(told, "no model \"t\" in the store; it is empty: `hob pull` fetches models into it");
}

#[test]
fn a_linked_model_stays_where_it_is() {
    let (_folder, store, file) = setting();
    let pulled = pull_file(&store, &file, |options| options.link = true).unwrap();
    assert!(pulled.entry.is_linked());
    assert_eq!(store.locate(Path::new("tiny-f32")).unwrap(), fs::canonicalize(&file).unwrap());
    store.remove("tiny-f32").unwrap();
    assert!(file.exists());
}

#[test]
fn a_name_is_given_once() {
    let (_folder, store, file) = setting();
    pull_file(&store, &file, |options| options.name = Some("a".into())).unwrap();
    let again = pull_file(&store, &file, |options| options.name = Some("a".into())).unwrap_err();
    assert!(matches!(&again, StoreError::NameTaken { name, .. } if name == "a"), "{again}");
    let alias = pull_file(&store, &file, |options| options.aliases = vec!["a".into()]);
    assert!(matches!(alias.unwrap_err(), StoreError::NameTaken { .. }));
    let bad = pull_file(&store, &file, |options| options.name = Some("../a".into())).unwrap_err();
    assert!(matches!(bad, StoreError::BadName { .. }));
    assert_eq!(store.names().unwrap(), ["a"]);
    let told = store.locate(Path::new("b")).unwrap_err().to_string();
    assert_eq!(told, "no model \"b\" in the store; it has a");
}

#[test]
fn what_is_no_model_or_has_another_checksum_leaves_nothing() {
    let (folder, store, file) = setting();
    let wrong = pull_file(&store, &file, |options| options.sha256 = Some("ab".repeat(32)));
    let told = wrong.unwrap_err().to_string();
    assert!(told.contains("wanted the SHA-256 abab"), "{told}");
    let text = folder.path().join("text.gguf");
    fs::write(&text, "no model").unwrap();
    let told = pull_file(&store, &text, |_| {}).unwrap_err().to_string();
    assert!(told.contains("is not a usable model, nothing was kept"), "{told}");
    let cut = folder.path().join("cut.gguf");
    fs::write(&cut, &model()[..model().len() - 1]).unwrap();
    assert!(matches!(pull_file(&store, &cut, |_| {}), Err(StoreError::NotAModel { .. })));
    assert!(store.models().unwrap().is_empty());
    assert_eq!(fs::read_dir(store.partial()).unwrap().count(), 0);
}

#[test]
fn a_manifest_of_another_make_is_refused() {
    let (_folder, store, file) = setting();
    pull_file(&store, &file, |_| {}).unwrap();
    let path = store.folder().join(MANIFEST);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"version\": 1", "\"version\": 2")).unwrap();
    let told = store.models().unwrap_err().to_string();
    assert!(told.contains("version: wanted 1, found 2"), "{told}");
    fs::write(&path, text.replace("\"tiny-f32\"", "\"../tiny\"")).unwrap();
    assert!(store.models().unwrap_err().to_string().contains("cannot be a model's name"));
    fs::write(&path, "{").unwrap();
    assert!(matches!(store.models(), Err(StoreError::Manifest { .. })));
}

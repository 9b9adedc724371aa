//! The configuration file: defaults, errors, default places.

use std::fs;
use std::path::{Path, PathBuf};

use hob::config::{
    Config, ConfigError, KvDtype, ModelTable, Places, SamplingOverrides, load, parse,
};

const FILE: &str = "/etc/hob/hobd.toml";

fn refuse(text: &str) -> String {
    parse(text, Path::new(FILE)).expect_err(text).to_string()
}

#[test]
fn shipped_file_holds_every_key_at_its_default_with_a_comment() {
    let text = include_str!("../config/hobd.toml");
    assert_eq!(parse(text, Path::new(FILE)).expect("parses"), Config::default());
    let shipped: toml::Table = text.parse().expect("TOML");
    let defaults = toml::Table::try_from(Config::default()).expect("serialises");
    assert_eq!(shipped, defaults, "a key is missing or superfluous");
    let lines: Vec<&str> = text.lines().collect();
    for (n, line) in lines.iter().enumerate().filter(|(_, line)| line.contains(" = ")) {
        let documented = line.starts_with('#') || lines[n - 1].starts_with("# ");
        assert!(documented, "{line:?} has no comment above it");
    }
}

#[test]
fn unknown_key_names_file_line_key_and_nearest() {
    let message = refuse("# a comment\n\nsockets = \"/x\"\n");
    assert!(message.starts_with("/etc/hob/hobd.toml:3: unknown key \"sockets\""), "{message}");
    assert!(message.contains("did you mean \"socket\"?"), "{message}");
    let message = refuse("[zzz]\nqqq = 1\n");
    assert!(message.contains(":1: unknown key \"zzz\""), "{message}");
    assert!(!message.contains("did you mean"), "{message}");
}

#[test]
fn wrong_values_name_key_wanted_and_found() {
    for (text, expected) in [
        ("\nvalidation = 1", "hobd.toml:2: validation: wanted true or false, found the integer 1"),
        (
            "kv_dtype = \"f8\"",
            "hobd.toml:1: kv_dtype: wanted \"auto\", \"f32\", \"f16\" or \"q8_0\", found the string \"f8\"",
        ),
        (
            "sessions_max = \"many\"",
            "sessions_max: wanted an integer from 1 to 1024, found the string \"many\"",
        ),
        ("sessions_max = -1", "wanted an integer from 1 to 1024, found the integer -1"),
        ("device = 1\nsessions_max = 0", "device: wanted an index, name or UUID in quotes"),
        ("\n\n\nsessions_max = 0", "hobd.toml:4: sessions_max: wanted an integer from 1 to 1024"),
        ("frame_bytes_max = 99999999999", "frame_bytes_max: wanted an integer from 4096"),
        ("socket = [\"a\"]", "socket: wanted a path in quotes, found an array"),
        ("context_tokens = 1.5", "context_tokens: wanted an integer from 0"),
        ("model = \"a\"\nmodel = \"b\"", "hobd.toml:2: not TOML: duplicate key"),
        ("socket = ", "hobd.toml:1: not TOML"),
        (
            "sampling = { top_p = 1.5 }",
            "hobd.toml:1: sampling: wanted a table with any of temperature (0 to",
        ),
        (
            "sampling = { temp = 1 }",
            "hobd.toml:1: sampling: wanted a table with any of temperature (0 to",
        ),
        ("sampling = { top_k = \"x\" }", "found the string \"x\" (top_k)"),
        ("lora = [\"a=b\", \"c\"]", "found \"c\""),
        (
            "sampling = { temprature = 1 }",
            "unknown field `temprature`, expected one of `temperature`",
        ),
        ("idle_unload = \"0s\"", "idle_unload: wanted a time from \"1s\""),
    ] {
        let message = refuse(text);
        assert!(message.contains(expected), "{text:?}: {message}");
    }
}

#[test]
fn settings_of_the_command_line_are_checked_too() {
    let config = Config { context_tokens: u32::MAX, ..Config::default() };
    let message = config.check().expect_err("too large").to_string();
    assert!(message.starts_with("context_tokens: wanted an integer from 0 to"), "{message}");
    let lora = || "law=law.gguf".parse().expect("an adapter");
    let config = Config { lora: vec![lora(), lora()], ..Config::default() };
    let message = config.check().expect_err("one name").to_string();
    assert_eq!(message, "lora: wanted names that differ, found \"law\" twice");
    let config = Config { socket: format!("/{}", "x".repeat(107)).into(), ..Config::default() };
    let message = config.check().expect_err("too long").to_string();
    assert_eq!(message, "socket: wanted a path of at most 107 bytes, found one of 108");
}

#[test]
fn user_file_comes_before_the_default_and_explicit_must_exist() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let places = Places { xdg_config_home: Some(folder.path().to_owned()), ..Places::default() };
    let file = folder.path().join("hob/hobd.toml");
    fs::create_dir(folder.path().join("hob")).expect("folder");
    fs::write(&file, "kv_dtype = \"f32\"\n").expect("file");
    assert_eq!(load(None, &places).expect("loads").kv_dtype, KvDtype::F32);
    let missing = folder.path().join("missing.toml");
    let error = load(Some(&missing), &places).expect_err("is not there");
    assert!(error.to_string().contains("missing.toml"), "{error}");
    fs::write(&file, b"model = \"\xff\"").expect("file");
    assert!(matches!(load(None, &places), Err(ConfigError::Read { .. })));
}

#[test]
fn default_places_follow_xdg_and_systemd() {
    let home = Some(PathBuf::from("/home/ada"));
    let bare = Places { uid: 1000, home: home.clone(), ..Places::default() };
    assert_eq!(bare.socket(), Path::new("/home/ada/.local/state/hob/hob.sock"));
    let homeless = Places { uid: 1000, ..Places::default() };
    assert_eq!(homeless.socket(), Path::new("/run/hob-1000/hob.sock"), "which only root can make");
    assert_eq!(bare.config_files()[0], Path::new("/home/ada/.config/hob/hobd.toml"));
    assert_eq!(bare.cache_dir(&Config::default()), Some("/home/ada/.cache/hob".into()));
    let root = Places { uid: 0, ..Places::default() };
    assert_eq!(root.socket(), Path::new("/run/hob-0/hob.sock"), "the system's is the service's");
    let user = Places { xdg_runtime_dir: Some("/run/user/1000".into()), ..bare };
    assert_eq!(user.socket(), Path::new("/run/user/1000/hob/hob.sock"));
    assert_eq!(
        user.client_sockets(),
        [Path::new("/run/user/1000/hob/hob.sock"), Path::new("/run/hob/hob.sock")]
    );
    let service = Places { runtime_directory: Some("/run/hob".into()), ..user.clone() };
    assert_eq!(service.socket(), Path::new("/run/hob/hob.sock"));
    assert_eq!(service.client_sockets(), user.client_sockets());
    let named = Config { socket: "/x/y".into(), ..Config::default() };
    assert_eq!(service.socket_of(&named), Path::new("/x/y"));
}

#[test]
fn missing_model_says_how_to_name_one() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let places = Places {
        home: Some("/home/ada".into()),
        xdg_data_home: Some(folder.path().to_owned()),
        ..Places::default()
    };
    let message = places.no_model(Vec::new()).to_string();
    let config_file = "/home/ada/.config/hob/hobd.toml";
    for part in ["hob/models/default.gguf", "hob pull", "hob run --model", config_file] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(places.models_dir(), Some(folder.path().join("hob/models")));
    let message = places.no_model(vec!["a".to_owned(), "b".to_owned()]).to_string();
    assert!(message.contains("none of a, b in"), "{message}");
    let message = Places::default().no_model(Vec::new()).to_string();
    assert!(message.contains("neither XDG_DATA_HOME nor HOME"), "{message}");
}

#[test]
fn tables_of_models_are_read_and_checked() {
    let path = Path::new("hobd.toml");
    let text = "sessions_max = 2\n[[model]]\nname = \"a\"\naliases = [\"x\"]\npinned = true\n\
                [[model]]\nname = \"b\"\npath = \"b.gguf\"\nkv_dtype = \"f16\"\nkv_tokens = 64\n\
                sampling = { temperature = 1 }\n";
    let models = parse(text, path).expect("valid").models;
    assert_eq!(models.len(), 2);
    let a = ModelTable {
        name: "a".into(),
        aliases: vec!["x".into()],
        pinned: true,
        ..ModelTable::default()
    };
    let b = ModelTable {
        name: "b".into(),
        path: "b.gguf".into(),
        kv_dtype: Some(KvDtype::F16),
        kv_tokens: Some(64),
        sampling: SamplingOverrides { temperature: Some(1.0), ..SamplingOverrides::default() },
        ..ModelTable::default()
    };
    assert_eq!(models, [a, b]);
    for (text, expected) in [
        ("[[model]]\npath = \"b\"", "1: model.name: wanted a text without spaces"),
        ("[[model]]\nname = \"a b\"", "2: model.name: wanted a text without spaces"),
        ("[[model]]\nname = \"a\"\npined = true", "3: unknown key \"model.pined\"; did you mean"),
        ("[[model]]\nname = \"a\"\nkv_tokens = \"9\"", "3: model.kv_tokens: wanted an integer"),
        ("[[model]]\nname = \"a\"\ncontext_tokens = 9999999", "3: model.context_tokens: wanted"),
        ("[[model]]\nname = \"a\"\n[[model]]\nname = \"a\"", "model.name: wanted names and"),
        ("model = [1]", "1: model: wanted [[model]] tables, found the integer 1"),
        ("model = 1", "1: model: wanted a name or a path in quotes, found the integer 1"),
    ] {
        let message = parse(text, path).expect_err(text).to_string();
        assert!(message.contains(expected), "{text:?}: {message}");
    }
}

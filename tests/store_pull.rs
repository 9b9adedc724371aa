//! `hob pull` against servers that drop, lie, change their mind, refuse or fall silent: what comes
//! is either the model, whole, or nothing that could be taken for one.

#![allow(clippy::unwrap_used)]

#[path = "store/server.rs"]
#[allow(unreachable_pub, dead_code)]
mod server;

use std::path::Path;
use std::time::Duration;

use hob::gguf::GgufBuilder;
use hob::store::{Hub, PullOptions, PullProgress, Pulled, Source, Store, StoreError, pull};
use hob::tensor::DType;
use serde_json::{Value, json};
use server::{Reply, Request, Server};
use sha2::{Digest, Sha256};

/// Enough to come in several pieces.
const TENSOR_BYTES: usize = 400_000;

fn model(fill: u8) -> Vec<u8> {
    GgufBuilder::new()
        .metadata("general.architecture", "llama")
        .tensor("t", DType::F32, &[1000, 100], &[fill; TENSOR_BYTES])
        .build()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Setting {
    folder: tempfile::TempDir,
    store: Store,
    options: PullOptions,
    /// Troubles that were told.
    told: Vec<String>,
}

impl Setting {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = PullOptions {
            stall: Duration::from_secs(5),
            attempts_max: 3,
            pause: Duration::from_millis(1),
            ..PullOptions::default()
        };
        let store = Store::new(folder.path().join("models"));
        let mut setting = Self { folder, store, options, told: Vec::new() };
        // A hub that no test means.
        setting.options.hub.endpoint = "http://127.0.0.1:1".to_owned();
        setting
    }

    fn with_hub(server: &Server, token: Option<&str>) -> Self {
        let mut setting = Self::new();
        setting.options.hub = Hub { endpoint: server.url.clone(), token: token.map(str::to_owned) };
        setting
    }

    fn pull(&mut self, source: &str) -> Result<Pulled, StoreError> {
        let (source, told) = (Source::parse(source).unwrap(), &mut self.told);
        pull(&self.store, &source, &self.options, &mut |progress| {
            if let PullProgress::Waiting { reason, .. } = progress {
                told.push(reason.to_owned());
            }
        })
    }

    /// Pulls the file that `server` has.
    fn pull_from(&mut self, server: &Server) -> Result<Pulled, StoreError> {
        self.pull(&format!("{}/m.gguf", server.url))
    }

    /// The store holds exactly this model.
    fn holds(&self, bytes: &[u8]) {
        let entries = self.store.models().unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!(std::fs::read(self.store.path(&entries[0])).unwrap(), bytes);
        assert_eq!(entries[0].files[0].sha256, sha256(bytes));
        assert_eq!(self.partial(), Vec::<String>::new(), "nothing is left over");
    }

    /// Nothing of the store could be taken for a model.
    fn holds_nothing(&self) {
        assert_eq!(self.store.models().unwrap(), []);
        assert_eq!(self.store.default_model().unwrap(), None);
        for name in files_below(self.store.folder()) {
            assert!(!name.ends_with(".gguf"), "{name} looks like a model");
        }
    }

    /// Files of unfinished pulls.
    fn partial(&self) -> Vec<String> {
        files_below(&self.store.folder().join("partial"))
    }
}

fn files_below(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => names.extend(files_below(&path)),
            false => names.push(path.display().to_string()),
        }
    }
    names
}

#[test]
fn a_dropped_connection_goes_on_where_it_was() {
    let file = model(1);
    let served = file.clone();
    let server = Server::start(move |index, request| {
        let reply = Reply::file(request, &served).header("etag", "\"one\"");
        if index < 2 { reply.cut_after(150_000) } else { reply }
    });
    let mut setting = Setting::new();
    let pulled = setting.pull_from(&server).unwrap();
    assert_eq!((pulled.entry.name.as_str(), pulled.already), ("m", false));
    setting.holds(&file);
    let requests = server.requests();
    let starts: Vec<_> = requests.iter().map(Request::range_start).collect();
    assert_eq!(starts, [None, Some(150_000), Some(300_000)]);
    assert_eq!(requests[1].header("if-range"), Some("\"one\""));
    assert_eq!(setting.told.len(), 2, "{:?}", setting.told);
}

#[test]
fn an_interrupted_pull_goes_on_when_it_is_given_again() {
    let file = model(1);
    let served = file.clone();
    let server = Server::start(move |index, request| {
        let reply = Reply::file(request, &served).header("etag", "\"one\"");
        // One try that gets somewhere, then three that do not.
        match index {
            0 => reply.cut_after(123_456),
            1..4 => reply.cut_after(0),
            _ => reply,
        }
    });
    let mut setting = Setting::new();
    let told = setting.pull_from(&server).unwrap_err().to_string();
    assert!(told.contains("123456 bytes are kept"), "{told}");
    setting.holds_nothing();
    setting.pull_from(&server).unwrap();
    setting.holds(&file);
    assert_eq!(server.requests().last().unwrap().range_start(), Some(123_456));
}

#[test]
fn a_server_that_announces_more_than_it_has_is_given_up() {
    let file = model(1);
    let server = Server::start(move |_, request| match request.range_start() {
        None => Reply { announced: Some(file.len() + 9), ..Reply::new(200, &file) }
            .header("etag", "\"one\""),
        Some(_) => {
            Reply::new(416, b"").header("content-range", format!("bytes */{}", file.len() + 9))
        }
    });
    let mut setting = Setting::new();
    let told = setting.pull_from(&server).unwrap_err().to_string();
    assert!(told.contains("failed 3 times in a row"), "{told}");
    setting.holds_nothing();
}

#[test]
fn a_server_that_announces_less_than_the_model_gives_no_model() {
    let file = model(1);
    let server = Server::start(move |_, _| Reply {
        announced: Some(file.len() - 9),
        ..Reply::new(200, &file)
    });
    let mut setting = Setting::new();
    let told = setting.pull_from(&server).unwrap_err().to_string();
    assert!(told.contains("is not a usable model, nothing was kept"), "{told}");
    setting.holds_nothing();
    assert_eq!(setting.partial(), Vec::<String>::new());
}

#[test]
fn a_server_that_ignores_ranges_sends_it_all_again() {
    let file = model(1);
    let served = file.clone();
    let server = Server::start(move |index, _| {
        let reply = Reply::new(200, &served).header("etag", "\"one\"");
        if index == 0 { reply.cut_after(200_000) } else { reply }
    });
    let mut setting = Setting::new();
    setting.pull_from(&server).unwrap();
    setting.holds(&file);
    assert_eq!(server.requests().len(), 2);
}

#[test]
fn a_file_that_changes_between_two_tries_is_begun_anew() {
    let (old, new) = (model(1), model(2));
    // One server knows If-Range, the other does not, and shows by its ETag alone what it sends.
    for knows in [true, false] {
        let (old, served) = (old.clone(), new.clone());
        let server = Server::start(move |index, request| match index {
            0 => Reply::new(200, &old).header("etag", "\"old\"").cut_after(99_999),
            _ if knows => Reply::new(200, &served).header("etag", "\"new\""),
            _ => Reply::file(request, &served).header("etag", "\"new\""),
        });
        let mut setting = Setting::new();
        setting.pull_from(&server).unwrap();
        setting.holds(&new);
    }
}

#[test]
fn without_an_etag_nothing_is_pieced_together() {
    let (old, new) = (model(1), model(2));
    let served = new.clone();
    let server = Server::start(move |index, request| match index {
        0 => Reply::new(200, &old).header("etag", "W/\"weak\"").cut_after(99_999),
        _ => Reply::file(request, &served),
    });
    let mut setting = Setting::new();
    setting.pull_from(&server).unwrap();
    setting.holds(&new);
    assert_eq!(server.requests()[1].range_start(), None);
}

#[test]
fn a_wrong_checksum_is_refused_and_leaves_nothing() {
    let file = model(1);
    let server = Server::start(move |_, request| Reply::file(request, &file));
    let mut setting = Setting::new();
    setting.options.sha256 = Some(sha256(b"another"));
    let told = setting.pull_from(&server).unwrap_err().to_string();
    assert!(told.contains(&format!("wanted the SHA-256 {}", sha256(b"another"))), "{told}");
    assert!(told.ends_with("nothing was kept"), "{told}");
    setting.holds_nothing();
    assert_eq!(setting.partial(), Vec::<String>::new());
}

#[test]
fn what_an_earlier_pull_left_is_begun_anew_where_the_checksum_tells() {
    let (old, new) = (model(1), model(2));
    let served = new.clone();
    // The checksum is known, so what is there is continued first, and found to be of another file.
    let server = Server::start(move |index, request| match index {
        0 => Reply::new(200, &old).cut_after(5_000),
        _ => Reply::file(request, &served),
    });
    let mut setting = Setting::new();
    setting.options.sha256 = Some(sha256(&new));
    setting.options.attempts_max = 1;
    assert!(setting.pull_from(&server).is_err());
    setting.pull_from(&server).unwrap();
    setting.holds(&new);
    let starts: Vec<_> = server.requests().iter().map(Request::range_start).collect();
    assert_eq!(starts, [None, Some(5_000), None]);
}

#[test]
fn a_silent_server_is_left_and_asked_again() {
    let file = model(1);
    let served = file.clone();
    let server = Server::start(move |index, request| {
        let reply = Reply::file(request, &served).header("etag", "\"one\"");
        match index {
            0 => reply.cut_after(50_000).stalling(Duration::from_secs(20)),
            _ => reply,
        }
    });
    let mut setting = Setting::new();
    setting.options.stall = Duration::from_millis(200);
    setting.pull_from(&server).unwrap();
    setting.holds(&file);
    assert_eq!(server.requests()[1].range_start(), Some(50_000));
}

#[test]
fn statuses_are_told_in_words() {
    for (status, part) in [(404, "has no m.gguf (404)"), (401, "HF_TOKEN"), (418, "418")] {
        let server = Server::start(move |_, _| Reply::new(status, b"<html>"));
        let mut setting = Setting::new();
        let told = setting.pull_from(&server).unwrap_err().to_string();
        assert!(told.contains(part), "{status}: {told}");
        assert_eq!(server.requests().len(), 1, "{status} is final");
        setting.holds_nothing();
    }
    let server = Server::start(|_, _| Reply::new(429, b""));
    let told = Setting::new().pull_from(&server).unwrap_err().to_string();
    assert!(told.contains("3 times") && told.contains("too many requests (429)"), "{told}");
    let told = Setting::new().pull("http://127.0.0.1:1/m.gguf").unwrap_err().to_string();
    assert!(told.starts_with("the connection to 127.0.0.1:1 failed 3 times"), "{told}");
}

#[test]
fn an_overloaded_server_is_asked_again() {
    let file = model(1);
    let served = file.clone();
    let server = Server::start(move |index, request| match index {
        0 => Reply::new(503, b""),
        1 => Reply::new(429, b"").header("retry-after", "0"),
        _ => Reply::file(request, &served),
    });
    let mut setting = Setting::new();
    setting.pull_from(&server).unwrap();
    setting.holds(&file);
}

#[test]
fn redirects_are_followed_and_end() {
    let file = model(1);
    let served = file.clone();
    let server = Server::start(move |_, request| match request.path.as_str() {
        "/m.gguf" => Reply::new(302, b"").header("location", "/other?signature=1"),
        "/round.gguf" => Reply::new(302, b"").header("location", "/round.gguf"),
        _ => Reply::file(request, &served),
    });
    let mut setting = Setting::new();
    setting.pull_from(&server).unwrap();
    setting.holds(&file);
    let told = setting.pull(&format!("{}/round.gguf", server.url)).unwrap_err().to_string();
    assert!(told.contains("redirects more than 8 times"), "{told}");
}

/// A hub with the repository `a/b` of these files, which it redirects to `storage`: as the real one
/// answers, a file of its list a page. The repository was called `old/b` once.
fn hub(storage: &Server, files: &[(&str, Vec<u8>)]) -> Server {
    let list: Vec<_> = files
        .iter()
        .map(|(path, bytes)| {
            let size = bytes.len();
            let lfs = json!({"oid": sha256(bytes), "size": size, "pointerSize": 134});
            json!({"type": "file", "oid": "4dc2", "size": size, "lfs": lfs, "path": path})
        })
        .chain([json!({"type": "directory", "oid": "7be0", "size": 0, "path": "sub"})])
        .collect();
    let storage = storage.url.clone();
    let of_file = move |list: &[Value], path: &str| {
        let found = list.iter().find(|entry| entry["path"] == path[1..]);
        let Some(lfs) = found.map(|entry| &entry["lfs"]) else { return Reply::new(404, b"") };
        Reply::new(302, b"Found. Redirecting")
            .header("x-repo-commit", "0123456789abcdef0123456789abcdef01234567")
            .header("x-linked-size", lfs["size"].to_string())
            .header("x-linked-etag", lfs["oid"].to_string()) // in quotes
            .header("accept-ranges", "bytes")
            .header("location", format!("{storage}{path}?X-Amz-Signature=1"))
    };
    Server::start(move |_, request| {
        if let Some(path) = request.path.strip_prefix("/a/b/resolve/main") {
            return of_file(&list, path);
        }
        if let Some(query) = request.path.strip_prefix("/api/models/a/b/tree/main?recursive=true") {
            let page = query.strip_prefix("&cursor=").map_or(0, |page| page.parse().unwrap());
            let reply = Reply::new(200, &serde_json::to_vec(&list[page..=page]).unwrap());
            let host = request.header("host").unwrap();
            let next = format!(
                "<http://{host}/api/models/a/b/tree/main?recursive=true&cursor={}>; rel=\"next\"",
                page + 1
            );
            return if page + 1 < list.len() { reply.header("link", next) } else { reply };
        }
        match request.path.contains("old/b") {
            true => Reply::new(307, b"").header("location", request.path.replace("old/b", "a/b")),
            false => Reply::new(401, b"{\"error\":\"Invalid username or password.\"}")
                .header("x-error-code", "RepoNotFound"),
        }
    })
}

#[test]
fn a_repository_that_was_renamed_is_found_under_its_old_name() {
    let file = model(1);
    let served = file.clone();
    let storage = Server::start(move |_, request| Reply::file(request, &served));
    let hub = hub(&storage, &[("README.md", vec![1]), ("b-Q4_K_M.gguf", file.clone())]);
    let mut setting = Setting::with_hub(&hub, Some("secret"));
    let pulled = setting.pull("hf:old/b:Q4_K_M").unwrap();
    assert_eq!(pulled.entry.name, "b-q4_k_m");
    setting.holds(&file);
    assert_eq!(storage.requests()[0].path, "/b-Q4_K_M.gguf?X-Amz-Signature=1");
    // By its URL, where no list tells the checksum: the redirect does.
    let url = format!("{}/old/b/resolve/main/b-Q4_K_M.gguf", hub.url);
    assert!(setting.pull(&url).unwrap().already);
    let manifest = setting.folder.path().join("models/manifest.json");
    assert!(!std::fs::read_to_string(manifest).unwrap().contains("Signature"));
}

#[test]
fn the_hubs_token_goes_to_the_hub_and_not_where_it_points() {
    let file = model(1);
    let served = file.clone();
    let storage = Server::start(move |_, request| Reply::file(request, &served));
    let hub = hub(&storage, &[("README.md", vec![1]), ("sub/B-Q8_0.gguf", file.clone())]);
    let mut setting = Setting::with_hub(&hub, Some("secret"));
    let pulled = setting.pull("hf:a/b").unwrap();
    assert_eq!(
        (pulled.entry.name.as_str(), pulled.entry.source.as_str()),
        ("b-q8_0", "hf:a/b/sub/B-Q8_0.gguf")
    );
    setting.holds(&file);
    for request in hub.requests() {
        assert_eq!(request.header("authorization"), Some("Bearer secret"), "{request:?}");
    }
    let stored = storage.requests();
    assert_eq!((stored.len(), stored[0].header("authorization")), (1, None));
    // The checksum is known before anything is fetched again.
    assert!(setting.pull("hf:a/b").unwrap().already);
    assert!(setting.pull(&format!("{}/a/b/blob/main/sub/B-Q8_0.gguf", hub.url)).unwrap().already);
    assert_eq!(storage.requests().len(), 1);
    let told = setting.pull("hf:a/missing").unwrap_err().to_string();
    assert!(told.contains("the token has no access to it"), "{told}");
    let manifest = setting.folder.path().join("models/manifest.json");
    assert!(!std::fs::read_to_string(manifest).unwrap().contains("secret"));
}

#[test]
fn a_split_model_comes_whole_or_not_at_all() {
    let part = |no: u32, name: &str| {
        GgufBuilder::new()
            .metadata("general.architecture", "llama")
            .metadata("split.no", no)
            .metadata("split.count", 2u32)
            .metadata("split.tensors.count", 2u32)
            .tensor(name, DType::F32, &[100], &[1; 400])
            .build()
    };
    let parts = [part(0, "a"), part(1, "b")];
    let names = ["M-Q8_0-00001-of-00002.gguf", "M-Q8_0-00002-of-00002.gguf"];
    let served = parts.clone();
    let storage = Server::start(move |index, request| {
        let part = usize::from(request.path.contains("00002-of"));
        let reply = Reply::file(request, &served[part]);
        // The second part's first pull ends early, for good.
        if (1..4).contains(&index) { reply.cut_after(0) } else { reply }
    });
    let files = [(names[0], parts[0].clone()), (names[1], parts[1].clone()), ("x.gguf", model(3))];
    let hub = hub(&storage, &files);
    let mut setting = Setting::with_hub(&hub, None);
    let told = setting.pull("hf:a/b:q8_0").unwrap_err().to_string();
    assert!(told.contains("failed 3 times"), "{told}");
    assert_eq!(setting.store.models().unwrap(), []);
    let entry = setting.pull("hf:a/b:q8_0").unwrap().entry;
    let sums: Vec<String> = entry.files.iter().map(|file| file.sha256.clone()).collect();
    assert_eq!((entry.name.as_str(), sums), ("m-q8_0", parts.iter().map(|p| sha256(p)).collect()));
    assert_eq!(entry.facts.parameters, 200, "both parts are the model");
    let first: Vec<Request> =
        storage.requests().into_iter().filter(|request| request.path.contains("00001")).collect();
    assert_eq!(first.len(), 1, "what was whole is not fetched again");
    assert_eq!(setting.store.path(&entry).file_name().unwrap(), names[0]);
}

#[test]
fn a_hub_that_lies_about_a_file_is_refused() {
    let file = model(1);
    let served = file.clone();
    let storage = Server::start(move |_, request| {
        let mut file = served.clone();
        *file.last_mut().unwrap() ^= 1;
        // As long as it should be, or a byte shorter.
        let short = request.path.contains("short");
        Reply::file(request, &file[..file.len() - usize::from(short)])
    });
    let hub = hub(&storage, &[("m.gguf", file.clone()), ("short.gguf", file)]);
    let mut setting = Setting::with_hub(&hub, None);
    let told = setting.pull("hf:a/b/m.gguf").unwrap_err().to_string();
    assert!(told.contains("m.gguf: wanted the SHA-256"), "{told}");
    let told = setting.pull("hf:a/b/short.gguf").unwrap_err().to_string();
    assert!(told.contains("short.gguf: wanted 400"), "{told}");
    setting.holds_nothing();
    assert_eq!(setting.partial(), Vec::<String>::new());
}

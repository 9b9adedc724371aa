//! A pull from end to end: what is meant, fetching it, holding it against what is known, and only
//! then making it a model of the store.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};
use ureq::http::Uri;

use super::download::{self, Hashing, SHA256_DIGITS, Wanted, hexadecimal, need_space, retrying};
use super::error::{StoreError, failed};
use super::http::Http;
use super::hub::{Hub, Repo};
use super::manifest::{Entry, Facts, StoredFile};
use super::names::{self, Part};
use super::{Source, Store, make_folder, sync_folder};

/// Options of a pull.
#[derive(Clone, Debug)]
pub struct PullOptions {
    /// Name of the model; without it, that of its file.
    pub name: Option<String>,
    /// What else to call it.
    pub aliases: Vec<String>,
    /// Checksum that its (only) file must have, in hexadecimal.
    pub sha256: Option<String>,
    /// Leave a file of this machine where it is.
    pub link: bool,
    /// Options for reaching the hub.
    pub hub: Hub,
    /// Idle limit of a connection.
    pub stall: Duration,
    /// Tries without progress before giving up.
    pub attempts_max: u32,
    /// Before the second try; doubled before each further one.
    pub pause: Duration,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self {
            name: None,
            aliases: Vec::new(),
            sha256: None,
            link: false,
            hub: Hub::default(),
            stall: Duration::from_secs(30),
            attempts_max: 6,
            pause: Duration::from_millis(500),
        }
    }
}

/// Progress of a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullProgress<'a> {
    /// A file begins.
    File {
        /// Name.
        name: &'a str,
        /// Which of the model's files, from 1.
        index: usize,
        /// Files of the model.
        count: usize,
    },
    /// Bytes of the file are there.
    Bytes {
        /// So many.
        done: u64,
        /// Total, if known.
        total: Option<u64>,
    },
    /// The connection failed; the next try is after a pause.
    Waiting {
        /// Reason.
        reason: &'a str,
        /// Duration.
        pause: Duration,
    },
}

type Report<'a> = &'a mut dyn FnMut(PullProgress<'_>);

/// Outcome of a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// Name of the model.
    pub entry: Entry,
    /// It was there already, and is what it is at its source.
    pub already: bool,
}

/// Resolved source.
enum Plan {
    /// Files of a server.
    Remote { http: Box<Http>, files: Vec<Wanted> },
    /// Files of this machine.
    Local(Vec<PathBuf>),
}

/// Makes a model of the store out of `source`.
///
/// # Errors
/// The source is not there, not reachable, not what it should be, or no model; the name is taken;
/// the disk is full. Nothing is then in the store that was not there before; what had come of a
/// file is kept apart, and the next pull goes on from there, unless it is known to be wrong.
pub fn pull(
    store: &Store,
    source: &Source,
    options: &PullOptions,
    report: Report<'_>,
) -> Result<Pulled, StoreError> {
    let (plan, source) = plan(source, options, report)?;
    let first = match &plan {
        Plan::Remote { files, .. } => files[0].file.clone(),
        Plan::Local(paths) => file_name(&paths[0]),
    };
    let name = options.name.clone().unwrap_or_else(|| names::of_file(&first));
    for name in [&name].into_iter().chain(&options.aliases) {
        names::check(name)?;
    }
    if let Some(entry) = store.find(&name)? {
        return match is_same(&entry, &plan) {
            true => Ok(Pulled { entry, already: true }),
            false => Err(StoreError::NameTaken { name, from: entry.source }),
        };
    }
    make_folder(&store.partial())?;
    let mut entry = Entry {
        name,
        aliases: options.aliases.clone(),
        files: Vec::new(),
        source,
        added: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        facts: Facts::default(),
    };
    match plan {
        Plan::Local(paths) if options.link => link(&mut entry, paths, options, report)?,
        plan => fill(store, &mut entry, plan, options, report)?,
    }
    store.add(entry.clone())?;
    Ok(Pulled { entry, already: false })
}

/// True if a model of the store has the checksums that its source names.
fn is_same(entry: &Entry, plan: &Plan) -> bool {
    let Plan::Remote { files, .. } = plan else { return false };
    let same =
        |(ours, theirs): (&StoredFile, &Wanted)| theirs.sha256.as_ref() == Some(&ours.sha256);
    files.len() == entry.files.len() && entry.files.iter().zip(files).all(same)
}

fn plan(
    source: &Source,
    options: &PullOptions,
    report: Report<'_>,
) -> Result<(Plan, String), StoreError> {
    let hub = &options.hub;
    let of_hub = match source {
        Source::Url(url) => Source::of_hub_url(url, &hub.endpoint),
        _ => None,
    };
    let source = of_hub.as_ref().unwrap_or(source);
    let (plan, name) = match source {
        Source::Hub { repo, revision, file, quant } => {
            let repo = Repo { endpoint: &hub.endpoint, name: repo, revision };
            let http = client(options)?;
            let files = retrying(options, report, &hub.endpoint, |_| {
                repo.files(&http).map_err(|error| (error, false))
            });
            let files = files.map_err(|(error, _)| error)?;
            let chosen = repo.choose(&files, file.as_deref(), quant.as_deref())?;
            let name = format!("hf:{}/{}", repo.name, chosen[0].path);
            let files = chosen.iter().map(|file| Wanted {
                url: repo.url(&file.path),
                file: last_part(&file.path).to_owned(),
                bytes: Some(file.bytes),
                sha256: file.sha256.as_ref().map(|sum| sum.to_ascii_lowercase()),
            });
            (Plan::Remote { files: files.collect(), http: Box::new(http) }, name)
        }
        Source::Url(url) => {
            let files = files_of_url(url)?;
            (Plan::Remote { http: Box::new(client(options)?), files }, source.to_string())
        }
        Source::File(path) => {
            let path = fs::canonicalize(path).map_err(failed("find", path))?;
            if !path.is_file() {
                let reason = match path.is_dir() {
                    true => "a Hugging Face folder is used where it is: `hobd --model FOLDER`",
                    false => "it is no regular file",
                };
                return Err(StoreError::BadSource { text: path.display().to_string(), reason });
            }
            let folder = path.parent().unwrap_or(Path::new("/"));
            let all = Part::all(&file_name(&path));
            let paths = all.iter().map(|name| folder.join(name)).collect();
            (Plan::Local(paths), path.display().to_string())
        }
    };
    with_checksum(plan, options.sha256.as_deref()).map(|plan| (plan, name))
}

fn client(options: &PullOptions) -> Result<Http, StoreError> {
    let endpoint = &options.hub.endpoint;
    let uri: Uri = endpoint.parse().map_err(|_| StoreError::BadSource {
        text: endpoint.clone(),
        reason: "HF_ENDPOINT is no URL",
    })?;
    Ok(Http::new(options.stall, &uri, options.hub.token.clone()))
}

/// The file behind a URL; of a split model, all of its parts.
fn files_of_url(url: &str) -> Result<Vec<Wanted>, StoreError> {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let (path, query) = url.split_at(end);
    let file = last_part(path);
    let wanted = |name: String| Wanted {
        url: format!("{}{name}{query}", &path[..path.len() - file.len()]),
        file: name,
        bytes: None,
        sha256: None,
    };
    match file.is_empty() {
        true => Err(StoreError::BadSource { text: path.to_owned(), reason: "it names no file" }),
        false => Ok(Part::all(file).into_iter().map(wanted).collect()),
    }
}

/// The plan, its only file to have this checksum.
fn with_checksum(mut plan: Plan, sha256: Option<&str>) -> Result<Plan, StoreError> {
    let Some(sum) = sha256.map(str::to_ascii_lowercase) else { return Ok(plan) };
    let wrong = |reason| Err(StoreError::BadChecksum { text: sum.clone(), reason });
    if sum.len() != SHA256_DIGITS || !sum.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return wrong("a SHA-256 has 64 hexadecimal digits");
    }
    match &mut plan {
        Plan::Local(paths) if paths.len() == 1 => {}
        Plan::Remote { files, .. } if files.len() == 1 => files[0].sha256 = Some(sum),
        _ => return wrong("a checksum can be given for one file, and the model has several"),
    }
    Ok(plan)
}

/// Registers files where they are.
fn link(
    entry: &mut Entry,
    paths: Vec<PathBuf>,
    options: &PullOptions,
    report: Report<'_>,
) -> Result<(), StoreError> {
    entry.facts = facts(&paths[0], &entry.source)?;
    for (at, path) in paths.iter().enumerate() {
        let name = file_name(path);
        report(PullProgress::File { name: &name, index: at + 1, count: paths.len() });
        let (bytes, sha256) = read_through(path, &mut io::sink(), report)?;
        download::check(&name, bytes, &sha256, None, lower(options).as_deref())?;
        entry.files.push(StoredFile { path: path.clone(), bytes, sha256 });
    }
    Ok(())
}

fn lower(options: &PullOptions) -> Option<String> {
    options.sha256.as_ref().map(|sum| sum.to_ascii_lowercase())
}

/// Fetches or copies all files into a folder apart, which takes its place once all is well.
fn fill(
    store: &Store,
    entry: &mut Entry,
    plan: Plan,
    options: &PullOptions,
    report: Report<'_>,
) -> Result<(), StoreError> {
    let folder = store.partial().join(&entry.name);
    make_folder(&folder)?;
    let lock = File::open(&folder).map_err(failed("open", &folder))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| StoreError::Busy { file: entry.name.clone() })?;
    match plan {
        Plan::Remote { http, files } => {
            for (at, wanted) in files.iter().enumerate() {
                let (index, count) = (at + 1, files.len());
                report(PullProgress::File { name: &wanted.file, index, count });
                let path = folder.join(&wanted.file);
                let stored = match fetched_before(&path, wanted)? {
                    Some(stored) => stored,
                    None => {
                        let part =
                            download::fetch(&http, options, &store.partial(), wanted, report)?;
                        let (bytes, sha256) = (part.bytes, part.sha256());
                        part.move_to(&path)?;
                        StoredFile { path: PathBuf::new(), bytes, sha256 }
                    }
                };
                let path = Path::new(&entry.name).join(&wanted.file);
                entry.files.push(StoredFile { path, ..stored });
            }
        }
        Plan::Local(paths) => {
            for (at, from) in paths.iter().enumerate() {
                let name = file_name(from);
                report(PullProgress::File { name: &name, index: at + 1, count: paths.len() });
                let (bytes, sha256) = copy(from, &folder.join(&name), report)?;
                let known = download::check(&name, bytes, &sha256, None, lower(options).as_deref());
                if known.is_err() {
                    let _ = fs::remove_dir_all(&folder);
                }
                known?;
                let path = Path::new(&entry.name).join(&name);
                entry.files.push(StoredFile { path, bytes, sha256 });
            }
        }
    }
    let first = store.partial().join(&entry.files[0].path);
    entry.facts = facts(&first, &entry.source).inspect_err(|_| {
        let _ = fs::remove_dir_all(&folder);
    })?;
    settle(store, &folder, &entry.name)
}

/// Moves the folder of a whole model to its place.
fn settle(store: &Store, folder: &Path, name: &str) -> Result<(), StoreError> {
    sync_folder(folder)?;
    let place = store.folder().join(name);
    if place.exists() {
        // The manifest does not know it: a pull ended between this move and its entry.
        fs::remove_dir_all(&place).map_err(failed("remove", &place))?;
    }
    fs::rename(folder, &place).map_err(failed("move to", &place))?;
    sync_folder(store.folder())
}

/// A file that an earlier pull has fetched whole, before it ended at another.
fn fetched_before(path: &Path, wanted: &Wanted) -> Result<Option<StoredFile>, StoreError> {
    if !path.exists() {
        return Ok(None);
    }
    let (bytes, sha256) = read_through(path, &mut io::sink(), &mut |_| {})?;
    let known = wanted.sha256.as_ref() == Some(&sha256);
    Ok(known.then(|| StoredFile { path: PathBuf::new(), bytes, sha256 }))
}

/// Copies a file, sharing its blocks where the file system can.
fn copy(from: &Path, to: &Path, report: Report<'_>) -> Result<(u64, String), StoreError> {
    let source = File::open(from).map_err(failed("read", from))?;
    let mut target = File::create(to).map_err(failed("write", to))?;
    if rustix::fs::ioctl_ficlone(&target, &source).is_ok() {
        return read_through(to, &mut io::sink(), report);
    }
    let bytes = source.metadata().map_err(failed("look at", from))?.len();
    need_space(to.parent().unwrap_or(to), bytes)?;
    let copied = read_through(from, &mut target, report)?;
    target.sync_all().map_err(failed("sync", to))?;
    Ok(copied)
}

/// Reads a file to its end, into `out`; its size and checksum.
fn read_through(
    path: &Path,
    out: &mut impl Write,
    report: Report<'_>,
) -> Result<(u64, String), StoreError> {
    let mut file = File::open(path).map_err(failed("read", path))?;
    let total = file.metadata().map_err(failed("look at", path))?.len();
    let (mut hasher, mut done) = (Sha256::new(), 0);
    let mut buffer = vec![0; 1 << 20];
    loop {
        report(PullProgress::Bytes { done, total: Some(total) });
        let count = file.read(&mut buffer).map_err(failed("read", path))?;
        if count == 0 {
            return Ok((done, hexadecimal(&hasher.finalize())));
        }
        Hashing(&mut hasher).write_all(&buffer[..count]).map_err(failed("read", path))?;
        out.write_all(&buffer[..count]).map_err(failed("copy", path))?;
        done += count as u64;
    }
}

fn facts(path: &Path, from: &str) -> Result<Facts, StoreError> {
    let refused =
        |source| StoreError::NotAModel { from: from.to_owned(), source: Box::new(source) };
    let facts = Facts::read(path).map_err(refused)?;
    match facts.is_adapter {
        true => Err(StoreError::IsAdapter { from: from.to_owned() }),
        false => Ok(facts),
    }
}

fn last_part(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

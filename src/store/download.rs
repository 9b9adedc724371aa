//! One file from a server: goes on where it was interrupted, and is held against what is known.
//!
//! What has come lies in `KEY.part`, and the server's ETag of it in `KEY.etag`; the key stands for
//! the URL. A file is continued only if its ETag vouches for what is there, or if its checksum is
//! known and will tell in the end.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};
use ureq::http::Uri;

use super::error::{StoreError, failed};
use super::http::{Answer, Http, HttpError, host};
use super::hub::check_status;
use super::pull::{PullOptions, PullProgress};
use super::source::without_secrets;

/// Room for one read.
const BUFFER_BYTES: usize = 256 << 10;

/// Longest pause between two tries, also where the server asks for a longer one.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A SHA-256 in hexadecimal.
pub(super) const SHA256_DIGITS: usize = 64;

/// Left free for everybody else.
const FREE_BYTES_MIN: u64 = 64 << 20;

/// Bytes between two looks at the free space, of a file whose length nobody says.
const SPACE_LOOK_BYTES: u64 = 16 << 20;

/// A file to fetch, and what is known of it.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) url: String,
    /// File name, without folders.
    pub(super) file: String,
    pub(super) bytes: Option<u64>,
    /// In lower case.
    pub(super) sha256: Option<String>,
}

/// Asks again, after a pause that doubles, what failed in passing.
pub(super) fn retrying<T>(
    options: &PullOptions,
    report: &mut dyn FnMut(PullProgress<'_>),
    place: &str,
    mut attempt: impl FnMut(&mut dyn FnMut(PullProgress<'_>)) -> Result<T, (HttpError, bool)>,
) -> Result<T, (StoreError, bool)> {
    let mut attempts = 0;
    loop {
        let (error, progressed) = match attempt(report) {
            Ok(value) => return Ok(value),
            Err((HttpError::Final(error), progressed)) => return Err((error, progressed)),
            Err((HttpError::Passing { reason, after }, progressed)) => {
                ((reason, after), progressed)
            }
        };
        attempts = if progressed { 1 } else { attempts + 1 };
        let (reason, after) = error;
        if attempts >= options.attempts_max {
            let host = place.to_owned();
            let error = StoreError::Connection { host, attempts, reason, bytes: 0 };
            return Err((error, progressed));
        }
        let doubled = options.pause.saturating_mul(1 << (attempts - 1).min(16));
        let pause = doubled.max(after.unwrap_or_default()).min(PAUSE_MAX);
        report(PullProgress::Waiting { reason: &reason, pause });
        thread::sleep(pause);
    }
}

/// Fetches a file into `folder`, under its own name.
pub(super) fn fetch(
    http: &Http,
    options: &PullOptions,
    partial: &Path,
    wanted: &Wanted,
    report: &mut dyn FnMut(PullProgress<'_>),
) -> Result<Part, StoreError> {
    let uri: Uri = wanted.url.parse().map_err(|_| StoreError::BadSource {
        text: without_secrets(&wanted.url),
        reason: "it is no URL",
    })?;
    let mut part = Part::open(partial, wanted)?;
    loop {
        let continued = part.bytes > 0;
        // Only what goes further than ever before is progress: a server that makes every second try
        // begin anew would else be asked for ever.
        let mut furthest = part.bytes;
        let fetched = retrying(options, report, &host(&uri), |report| {
            let attempt = Attempt { http, uri: &uri, wanted, partial };
            attempt.run(&mut part, report).map_err(|error| {
                let progressed = part.bytes > furthest;
                furthest = furthest.max(part.bytes);
                (error, progressed)
            })
        });
        match fetched {
            Ok(()) => {}
            Err((StoreError::Connection { host, attempts, reason, .. }, _)) => {
                let bytes = part.bytes;
                return Err(StoreError::Connection { host, attempts, reason, bytes });
            }
            Err((error @ StoreError::Mismatch { .. }, _)) => {
                part.discard();
                return Err(error);
            }
            Err((error, _)) => return Err(error),
        }
        match part.check(wanted) {
            Ok(()) => return part.sync().map(|()| part),
            // What an earlier pull left may be another version of the file.
            Err(_) if continued => part.clear()?,
            Err(error) => {
                part.discard();
                return Err(error);
            }
        }
    }
}

/// One connection's worth of a file.
struct Attempt<'a> {
    http: &'a Http,
    uri: &'a Uri,
    wanted: &'a Wanted,
    partial: &'a Path,
}

impl Attempt<'_> {
    fn run(
        &self,
        part: &mut Part,
        report: &mut dyn FnMut(PullProgress<'_>),
    ) -> Result<(), HttpError> {
        let checksum_known = self.wanted.sha256.is_some();
        if self.wanted.bytes.is_some_and(|bytes| bytes == part.bytes) && checksum_known {
            return Ok(());
        }
        let mut headers = Vec::new();
        match part.etag() {
            _ if part.bytes == 0 => {}
            _ if checksum_known => headers.push(("range", format!("bytes={}-", part.bytes))),
            Some(etag) => {
                headers.push(("range", format!("bytes={}-", part.bytes)));
                headers.push(("if-range", etag));
            }
            None => part.clear().map_err(HttpError::Final)?,
        }
        let answer = self.http.get(self.uri, &headers)?;
        let total = self.total(&answer, part)?;
        let Some(total) = total else { return Ok(()) };
        if let (Some(wanted), Some(found)) = (self.wanted.bytes, total.0)
            && wanted != found
        {
            return Err(HttpError::Final(StoreError::Mismatch {
                file: self.wanted.file.clone(),
                wanted: format!("{wanted} bytes"),
                found: format!("{found}"),
            }));
        }
        let left = total.0.unwrap_or(0).saturating_sub(part.bytes);
        need_space(self.partial, left).map_err(HttpError::Final)?;
        part.expect(answer.linked_etag.as_deref());
        let etag = answer.header("etag").map(str::to_owned);
        part.keep_etag(etag.as_deref()).map_err(HttpError::Final)?;
        part.append(answer, total.0, report)
    }

    /// Size of the whole file, where the server tells; `None` if there is nothing left to come.
    fn total(&self, answer: &Answer, part: &mut Part) -> Result<Option<Total>, HttpError> {
        let again = |part: &mut Part, reason: &str| {
            part.clear().map_err(HttpError::Final)?;
            Err(HttpError::Passing { reason: reason.to_owned(), after: None })
        };
        let range = answer.header("content-range").and_then(ContentRange::parse);
        match (answer.response.status().as_u16(), range) {
            (206, Some(range)) if range.start == Some(part.bytes) && part.bytes > 0 => {
                let changed = match (part.etag(), answer.header("etag")) {
                    (Some(before), Some(now)) => before != now && self.wanted.sha256.is_none(),
                    _ => false,
                };
                match changed {
                    true => again(part, "the file has changed on the server"),
                    false => Ok(Some(Total(range.total))),
                }
            }
            (206, _) => again(part, "the server sends another part than was asked for"),
            (416, Some(range)) if range.total == Some(part.bytes) && part.bytes > 0 => Ok(None),
            (416, _) => again(part, "the server cannot go on where it ended"),
            _ => {
                check_status(answer, self.http, self.uri, &self.wanted.file)?;
                // Range or not, this is the file from its beginning.
                part.clear().map_err(HttpError::Final)?;
                let length = answer.header("content-length").and_then(|text| text.parse().ok());
                Ok(Some(Total(length)))
            }
        }
    }
}

/// Bytes of the whole file, where they are known.
struct Total(Option<u64>);

/// `bytes START-END/TOTAL`, or `bytes */TOTAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ContentRange {
    start: Option<u64>,
    total: Option<u64>,
}

impl ContentRange {
    fn parse(text: &str) -> Option<Self> {
        let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
        let start = range.split_once('-').and_then(|(start, _)| start.trim().parse().ok());
        Some(Self { start, total: total.trim().parse().ok() })
    }
}

/// A file on its way.
pub(super) struct Part {
    path: PathBuf,
    etag_path: PathBuf,
    file: File,
    /// Bytes that have come.
    pub(super) bytes: u64,
    hasher: Sha256,
    /// The checksum that the hub names beside the file, where it does.
    linked_sha256: Option<String>,
}

impl Part {
    /// Opens what an earlier pull of the same URL left, or a new file, for this process alone.
    fn open(folder: &Path, wanted: &Wanted) -> Result<Self, StoreError> {
        let key = &hexadecimal(&Sha256::digest(wanted.url.as_bytes()))[..32];
        let path = folder.join(key).with_extension("part");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed("open", &path))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| StoreError::Busy { file: wanted.file.clone() })?;
        let mut hasher = Sha256::new();
        let bytes =
            io::copy(&mut file, &mut Hashing(&mut hasher)).map_err(failed("read", &path))?;
        let mut part = Self {
            etag_path: path.with_extension("etag"),
            path,
            file,
            bytes,
            hasher,
            linked_sha256: None,
        };
        if wanted.bytes.is_some_and(|most| part.bytes > most) {
            part.clear()?;
        }
        Ok(part)
    }

    /// The strong ETag of what has come.
    fn etag(&self) -> Option<String> {
        fs::read_to_string(&self.etag_path).ok().filter(|etag| is_strong(etag))
    }

    fn keep_etag(&self, etag: Option<&str>) -> Result<(), StoreError> {
        let etag = etag.filter(|etag| is_strong(etag)).unwrap_or_default();
        fs::write(&self.etag_path, etag).map_err(failed("write", &self.etag_path))
    }

    /// Notes the hub's ETag, which is the checksum of a large file.
    fn expect(&mut self, linked_etag: Option<&str>) {
        let sum = linked_etag.map(|etag| etag.trim_matches('"').to_ascii_lowercase());
        self.linked_sha256 = sum.filter(|sum| {
            sum.len() == SHA256_DIGITS && sum.bytes().all(|byte| byte.is_ascii_hexdigit())
        });
    }

    /// Begins anew.
    fn clear(&mut self) -> Result<(), StoreError> {
        self.file
            .set_len(0)
            .and_then(|()| self.file.seek(SeekFrom::Start(0)))
            .map_err(failed("empty", &self.path))?;
        self.bytes = 0;
        self.hasher = Sha256::new();
        Ok(())
    }

    /// Appends what a server sends.
    fn append(
        &mut self,
        answer: Answer,
        total: Option<u64>,
        report: &mut dyn FnMut(PullProgress<'_>),
    ) -> Result<(), HttpError> {
        let passing = |reason: String| HttpError::Passing { reason, after: None };
        let mut body = answer.response.into_body().into_reader();
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            report(PullProgress::Bytes { done: self.bytes, total });
            let count = match body.read(&mut buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(passing(error.to_string())),
            };
            if count == 0 {
                break;
            }
            let taken = match total {
                Some(_) => self.take(&buffer[..count]),
                None => self.take_unannounced(&buffer[..count], need_space),
            };
            taken.map_err(HttpError::Final)?;
        }
        match total {
            Some(total) if self.bytes < total => {
                Err(passing(format!("it ended after {} of {total} bytes", self.bytes)))
            }
            _ => Ok(()),
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.file.write_all(bytes).map_err(failed("write", &self.path))?;
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Takes bytes of a file of unknown length: where the disk would be full, what has come of it
    /// goes.
    fn take_unannounced(
        &mut self,
        bytes: &[u8],
        need_space: fn(&Path, u64) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let is_time = self.bytes % SPACE_LOOK_BYTES + bytes.len() as u64 >= SPACE_LOOK_BYTES;
        if (self.bytes == 0 || is_time)
            && let Err(full) = need_space(&self.path, SPACE_LOOK_BYTES)
        {
            self.clear()?;
            return Err(full);
        }
        self.take(bytes)
    }

    /// Holds size and checksum against what is known of the file.
    fn check(&self, wanted: &Wanted) -> Result<(), StoreError> {
        let sum = self.sha256();
        for expected in [&wanted.sha256, &self.linked_sha256] {
            check(&wanted.file, self.bytes, &sum, wanted.bytes, expected.as_deref())?;
        }
        Ok(())
    }

    pub(super) fn sha256(&self) -> String {
        hexadecimal(&self.hasher.clone().finalize())
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.file.sync_all().map_err(failed("sync", &self.path))
    }

    /// Moves the whole file to its place.
    pub(super) fn move_to(self, path: &Path) -> Result<(), StoreError> {
        fs::rename(&self.path, path).map_err(failed("move to", path))?;
        let _ = fs::remove_file(&self.etag_path); // there may be none
        Ok(())
    }

    fn discard(&self) {
        for path in [&self.path, &self.etag_path] {
            // Where it cannot be removed, its checksum keeps it from being used.
            let _ = fs::remove_file(path);
        }
    }
}

/// Holds a file's size and checksum against what is known.
pub(super) fn check(
    file: &str,
    bytes: u64,
    sha256: &str,
    bytes_wanted: Option<u64>,
    sha256_wanted: Option<&str>,
) -> Result<(), StoreError> {
    let wrong = |wanted, found| Err(StoreError::Mismatch { file: file.to_owned(), wanted, found });
    if let Some(wanted) = bytes_wanted.filter(|wanted| *wanted != bytes) {
        return wrong(format!("{wanted} bytes"), bytes.to_string());
    }
    if let Some(wanted) = sha256_wanted.filter(|wanted| *wanted != sha256) {
        return wrong(format!("the SHA-256 {wanted}"), sha256.to_owned());
    }
    Ok(())
}

/// An ETag that stands for the bytes, not only for their meaning.
fn is_strong(etag: &str) -> bool {
    etag.len() > 2 && etag.starts_with('"')
}

/// Checks that a folder's disk has room.
pub(super) fn need_space(folder: &Path, wanted_bytes: u64) -> Result<(), StoreError> {
    let found =
        rustix::fs::statvfs(folder).map_err(|error| failed("look at", folder)(error.into()))?;
    let free_bytes = found.f_bavail.saturating_mul(found.f_frsize);
    if wanted_bytes > 0 && wanted_bytes.saturating_add(FREE_BYTES_MIN) > free_bytes {
        let folder = folder.to_owned();
        return Err(StoreError::DiskFull { folder, wanted_bytes, free_bytes });
    }
    Ok(())
}

/// Hashes what is written to it.
pub(super) struct Hashing<'a>(pub(super) &'a mut Sha256);

impl Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        let read = |text| ContentRange::parse(text).map(|range| (range.start, range.total));
        assert_eq!(read("bytes 5-9/10"), Some((Some(5), Some(10))));
        assert_eq!(read("bytes */10"), Some((None, Some(10))));
        assert_eq!(read("bytes 5-9/*"), Some((Some(5), None)));
        assert_eq!(read("items 5-9/10"), None);
    }

    #[test]
    fn a_file_of_unknown_length_does_not_fill_the_disk() {
        let folder = tempfile::tempdir().expect("a folder");
        let wanted = Wanted {
            url: "http://host/x".to_owned(),
            file: "x".to_owned(),
            bytes: None,
            sha256: None,
        };
        let mut part = Part::open(folder.path(), &wanted).expect("a new file");
        let full = |folder: &Path, wanted_bytes| {
            let folder = folder.to_owned();
            Err(StoreError::DiskFull { folder, wanted_bytes, free_bytes: 0 })
        };
        part.take_unannounced(b"some", |_, _| Ok(())).expect("there is room");
        part.take_unannounced(b"more", full).expect("nobody looks at every byte");
        let last = vec![0; SPACE_LOOK_BYTES as usize];
        let error = part.take_unannounced(&last, full).expect_err("no room");
        assert!(matches!(error, StoreError::DiskFull { .. }), "{error}");
        assert_eq!(part.file.metadata().expect("it is there").len(), 0, "the part is gone");
    }

    #[test]
    fn a_full_disk_is_noticed_before() {
        let folder = tempfile::tempdir().expect("a folder");
        need_space(folder.path(), 1).expect("room for a byte");
        let error = need_space(folder.path(), u64::MAX).expect_err("no such disk").to_string();
        assert!(error.contains("bytes are needed and"), "{error}");
    }
}

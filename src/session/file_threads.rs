//! Files of sessions are written and removed by a thread of its own, in the order in which it is
//! asked to, and read by another: a disk that takes its time does not hold up the engine.
//!
//! Where the daemon ends, tokens come first: between two pieces of a cache that is being written,
//! the thread writes what is urgent.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::file::{SAVED, Saved, SessionFileError, sync_folder_of};

/// Files that wait while one is written. Each holds a cache in the host's memory, so whoever comes
/// with more waits.
const WAITING_MAX: usize = 2;

/// Told when a file is done with: what is in it where it was read, or why it was not.
type Done<T> = Box<dyn FnOnce(Result<T, SessionFileError>) + Send>;

/// Durability of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    /// Swapped-out cache: useless after the daemon ends, so not synced.
    Parked,
    /// On the disk when it is told to be.
    Saved,
}

struct Write {
    saved: Saved,
    path: PathBuf,
    how: Writing,
    done: Done<()>,
}

/// A small file that is written before all others.
struct Urgent {
    saved: Saved,
    path: PathBuf,
    /// Asked as its turn comes.
    is_wanted: Box<dyn FnOnce() -> bool + Send>,
    done: Done<()>,
}

enum Job {
    Write(Box<Write>),
    Remove(PathBuf, Box<dyn FnOnce(io::Result<()>) + Send>),
    Flush(Sender<()>),
    /// Something urgent came.
    Wake,
}

struct Read {
    path: PathBuf,
    made_by: String,
    done: Done<Saved>,
    /// Ends when all is written that was handed over before.
    before: Receiver<()>,
}

/// Files that are handed over and not written.
#[derive(Debug, Default)]
struct Unwritten {
    count: Mutex<usize>,
    fewer: Condvar,
}

impl Unwritten {
    /// Adds one, once they are few enough.
    fn add(&self) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |count: &mut usize| *count > WAITING_MAX;
        let mut count = self.fewer.wait_while(count, full).unwrap_or_else(PoisonError::into_inner);
        *count += 1;
    }

    fn remove(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.fewer.notify_one();
    }
}

/// How far the threads are, and what is no longer worth while.
#[derive(Debug, Default)]
struct Pace {
    /// Bytes written so far.
    written: AtomicU64,
    /// The daemon ends: caches are not parked any more.
    ending: AtomicBool,
    /// The time is over: nothing is begun any more.
    over: AtomicBool,
}

impl Pace {
    /// Before a piece of a file is written.
    fn step(&self, how: Writing, bytes: usize) -> io::Result<()> {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
        let too_late = self.over.load(Ordering::Acquire)
            || how == Writing::Parked && self.ending.load(Ordering::Acquire);
        match too_late {
            true => Err(io::Error::other("there was no time left: the daemon is stopping")),
            false => Ok(()),
        }
    }
}

/// Handle of the file threads; they end when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct FileThreads {
    jobs: Sender<Job>,
    urgent: Sender<Urgent>,
    pace: Arc<Pace>,
    reads: Sender<Read>,
    unwritten: Arc<Unwritten>,
}

impl FileThreads {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system's, where there can be none.
    pub fn start() -> io::Result<Self> {
        let ((jobs, to_do), (reads, to_read)) = (channel(), channel());
        let (urgent, urgent_to_do) = channel();
        let (unwritten, pace) = (Arc::new(Unwritten::default()), Arc::new(Pace::default()));
        let writer = Writer {
            urgent: urgent_to_do,
            unwritten: Arc::clone(&unwritten),
            pace: Arc::clone(&pace),
        };
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        thread("files").spawn(move || writer.work(&to_do))?;
        thread("files read").spawn(move || read_all(&to_read))?;
        Ok(Self { jobs, urgent, pace, reads, unwritten })
    }

    /// Writes a file, and says when it is done.
    pub fn write(
        &self,
        saved: Saved,
        path: PathBuf,
        how: Writing,
        done: impl FnOnce(Result<(), SessionFileError>) + Send + 'static,
    ) {
        self.unwritten.add();
        let write = Write { saved, path, how, done: Box::new(done) };
        if let Err(lost) = self.jobs.send(Job::Write(Box::new(write)))
            && let Job::Write(write) = lost.0
        {
            self.unwritten.remove();
            (write.done)(Err(gone(write.path)));
        }
    }

    /// Reads a file as [`Saved::read`] does, after what was handed over before, and says what is in
    /// it.
    pub fn read(
        &self,
        path: PathBuf,
        made_by: String,
        done: impl FnOnce(Result<Saved, SessionFileError>) + Send + 'static,
    ) {
        let read = Read { path, made_by, done: Box::new(done), before: self.start_flush() };
        if let Err(lost) = self.reads.send(read) {
            (lost.0.done)(Err(gone(lost.0.path)));
        }
    }

    /// Writes a small file before all others, unless it is not wanted any more as its turn comes.
    pub fn write_first(
        &self,
        saved: Saved,
        path: PathBuf,
        is_wanted: impl FnOnce() -> bool + Send + 'static,
        done: impl FnOnce(Result<(), SessionFileError>) + Send + 'static,
    ) {
        let (is_wanted, done) = (Box::new(is_wanted), Box::new(done));
        let urgent = Urgent { saved, path, is_wanted, done };
        match self.urgent.send(urgent) {
            Ok(()) => drop(self.jobs.send(Job::Wake)), // as below
            Err(lost) => (lost.0.done)(Err(gone(lost.0.path))),
        }
    }

    /// The daemon ends: caches are not parked any more.
    pub fn end(&self) {
        self.pace.ending.store(true, Ordering::Release);
    }

    /// The time is over: what is being written is given up, and nothing more is begun.
    pub fn give_up(&self) {
        self.pace.over.store(true, Ordering::Release);
    }

    /// True if nothing more is written.
    #[must_use]
    pub fn has_given_up(&self) -> bool {
        self.pace.over.load(Ordering::Acquire)
    }

    /// Bytes written so far.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        self.pace.written.load(Ordering::Relaxed)
    }

    /// Removes a file, and says when it is gone: also where there was none.
    pub fn remove(&self, path: PathBuf, done: impl FnOnce(io::Result<()>) + Send + 'static) {
        if let Err(lost) = self.jobs.send(Job::Remove(path, Box::new(done)))
            && let Job::Remove(_, done) = lost.0
        {
            done(Err(io::Error::other("the thread for files is gone")));
        }
    }

    /// Waits until all is written that was handed over before.
    pub fn flush(&self) {
        let _ = self.start_flush().recv(); // an error: the thread is gone, and writes nothing
    }

    fn start_flush(&self) -> Receiver<()> {
        let (reply, done) = channel();
        let _ = self.jobs.send(Job::Flush(reply)); // as above
        done
    }
}

/// The threads end after those who ask them, or with a panic, which has been told.
fn gone(path: PathBuf) -> SessionFileError {
    SessionFileError::Io { path, source: io::Error::other("the thread for files is gone") }
}

/// The thread that writes.
struct Writer {
    urgent: Receiver<Urgent>,
    unwritten: Arc<Unwritten>,
    pace: Arc<Pace>,
}

impl Writer {
    fn work(&self, jobs: &Receiver<Job>) {
        for job in jobs {
            self.write_urgent();
            match job {
                Job::Write(write) => {
                    let Write { saved, path, how, done } = *write;
                    let durable = how == Writing::Saved;
                    let written = saved.write_watched(&path, durable, &mut |bytes| {
                        self.write_urgent();
                        self.pace.step(how, bytes)
                    });
                    drop(saved);
                    self.unwritten.remove();
                    done(written);
                }
                Job::Remove(path, done) => done(remove(&path)),
                Job::Flush(reply) => {
                    let _ = reply.send(()); // whoever asked may have given up
                }
                Job::Wake => {}
            }
        }
    }

    fn write_urgent(&self) {
        for Urgent { saved, path, is_wanted, done } in self.urgent.try_iter() {
            if is_wanted() {
                let step = &mut |bytes| self.pace.step(Writing::Saved, bytes);
                done(saved.write_watched(&path, true, step));
            }
        }
    }
}

/// Removes a file for good, if there is one.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if is_missing(&error) => Ok(()),
        Ok(()) if path.extension().is_some_and(|ending| ending == SAVED) => sync_folder_of(path),
        done => done,
    }
}

/// True if there is no such file, or no folder that it could be in.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn read_all(reads: &Receiver<Read>) {
    for Read { path, made_by, done, before } in reads {
        let _ = before.recv(); // as in `FileThreads::flush`
        done(Saved::read(&path, &made_by));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::super::file::Header;
    use super::*;

    fn saved(session: u64) -> Saved {
        let header = Header {
            uid: 7,
            session,
            name: None,
            context_tokens: 96,
            priority: "normal".into(),
            ttl_seconds: None,
            adapters: Vec::new(),
            made_by: "this".into(),
            tokens: 1,
            cache_bytes: 0,
        };
        Saved { header, tokens: vec![9], cache: Vec::new() }
    }

    #[test]
    fn jobs_are_done_in_their_order_and_failures_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let threads = FileThreads::start().expect("threads");
        let path = folder.path().join("7-19.session");
        let (told, results) = channel();
        let write = |session, path: &Path| {
            let told = told.clone();
            let done =
                move |written: Result<(), _>| told.send(written.is_ok()).expect("it is read");
            threads.write(saved(session), path.to_owned(), Writing::Saved, done);
        };
        (0..20).for_each(|session| write(session, &path));
        threads.flush();
        assert_eq!(Saved::read(&path, "this").expect("whole"), saved(19));
        threads.remove(path.clone(), |removed| removed.expect("it can be removed"));
        write(5, &path.join("below a file that is gone"));
        fs::write(folder.path().join("plain"), b"").expect("written");
        write(6, &folder.path().join("plain").join("below a file"));
        threads.flush();
        let results: Vec<_> = results.try_iter().collect();
        assert_eq!(results[..20], [true; 20]);
        assert_eq!(results[20..], [true, false]);
    }

    /// A pipe in the place of a file holds the thread until it is read.
    fn hold(threads: &FileThreads, folder: &Path) -> (PathBuf, Receiver<bool>) {
        let path = folder.join("7-1.tmp");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).expect("a pipe");
        let (told, result) = channel();
        let cache = vec![0; 32 << 20];
        let header = Header { cache_bytes: cache.len() as u64, ..saved(1).header };
        let large = Saved { header, cache, ..saved(1) };
        threads.write(large, folder.join("7-1.session"), Writing::Saved, move |written| {
            told.send(written.is_ok()).expect("it is read");
        });
        (path, result)
    }

    #[test]
    fn what_is_urgent_is_written_between_two_pieces_of_a_cache() {
        let folder = tempfile::tempdir().expect("a folder");
        let threads = FileThreads::start().expect("threads");
        let (pipe, large) = hold(&threads, folder.path());
        let path = folder.path().join("7-5.session");
        let (told, result) = channel();
        let first = told.clone();
        threads.write_first(
            saved(5),
            path.clone(),
            || true,
            move |written| {
                first.send(written.is_ok()).expect("it is read");
            },
        );
        threads.write_first(
            saved(6),
            folder.path().join("7-6.session"),
            || false,
            move |_| {
                told.send(false).expect("it is read");
            },
        );
        // Takes the beginning of the large file, and leaves most of it in the writer's hands.
        let mut reader = fs::File::open(&pipe).expect("the pipe");
        io::Read::read_exact(&mut reader, &mut [0; 1 << 20]).expect("the writer writes");
        assert_eq!(result.recv(), Ok(true));
        assert_eq!(Saved::read(&path, "this").expect("whole"), saved(5));
        assert!(result.try_recv().is_err(), "what is not wanted is not written");
        // The time is over: the writer gives up at the next piece.
        threads.give_up();
        io::copy(&mut reader, &mut io::sink()).expect("it ends");
        threads.flush();
        assert_eq!(large.recv(), Ok(false));
        assert!(!pipe.exists() && !folder.path().join("7-6.session").exists());
    }
}

//! Files of sessions are written and removed by a thread of its own, in the order in which it is
//! asked to, and read by another: a disk that takes its time does not hold up the engine.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::file::{Saved, SessionFileError};

/// Files that wait while one is written. Each holds a cache in the host's memory, so whoever comes
/// with more waits.
const WAITING_MAX: usize = 2;

/// Told when a file is done with: what is in it where it was read, or why it was not.
type Done<T> = Box<dyn FnOnce(Result<T, SessionFileError>) + Send>;

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    /// Of no use to another life of the daemon.
    Parked,
    /// On the disk when it is told to be.
    Saved,
    /// As saved; where there is no room for the cache, the tokens alone.
    SavedWithinRoom,
}

struct Write {
    saved: Saved,
    path: PathBuf,
    how: Writing,
    done: Done<()>,
}

enum Job {
    Write(Box<Write>),
    Remove(PathBuf),
    Flush(Sender<()>),
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

/// What hands files to the threads; they end with the last of these.
#[derive(Clone, Debug)]
pub struct FileThreads {
    jobs: Sender<Job>,
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
        let unwritten = Arc::new(Unwritten::default());
        let written = Arc::clone(&unwritten);
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        thread("files").spawn(move || work(&to_do, &written))?;
        thread("files read").spawn(move || read_all(&to_read))?;
        Ok(Self { jobs, reads, unwritten })
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

    /// Removes a file, if there is one.
    pub fn remove(&self, path: PathBuf) {
        let _ = self.jobs.send(Job::Remove(path)); // a leftover goes at the next start
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

fn work(jobs: &Receiver<Job>, unwritten: &Unwritten) {
    for job in jobs {
        match job {
            Job::Write(write) => {
                let Write { mut saved, path, how, done } = *write;
                let mut written = saved.write(&path, how != Writing::Parked);
                if how == Writing::SavedWithinRoom
                    && written.as_ref().is_err_and(SessionFileError::is_for_want_of_room)
                {
                    saved.drop_cache();
                    written = saved.write(&path, true);
                }
                drop(saved);
                unwritten.remove();
                done(written);
            }
            Job::Remove(path) => {
                let _ = fs::remove_file(path); // a leftover goes at the next start
            }
            Job::Flush(reply) => {
                let _ = reply.send(()); // whoever asked may have given up
            }
        }
    }
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
        let (threads, path) = (FileThreads::start().expect("threads"), folder.path().join("file"));
        let (told, results) = channel();
        let write = |session, path: &std::path::Path| {
            let told = told.clone();
            let done =
                move |written: Result<(), _>| told.send(written.is_ok()).expect("it is read");
            threads.write(saved(session), path.to_owned(), Writing::Saved, done);
        };
        (0..20).for_each(|session| write(session, &path));
        threads.flush();
        assert_eq!(Saved::read(&path, "this").expect("whole"), saved(19));
        threads.remove(path.clone());
        write(5, &path.join("below a file that is gone"));
        fs::write(folder.path().join("plain"), b"").expect("written");
        write(6, &folder.path().join("plain").join("below a file"));
        threads.flush();
        let results: Vec<_> = results.try_iter().collect();
        assert_eq!(results[..20], [true; 20]);
        assert_eq!(results[20..], [true, false]);
    }
}

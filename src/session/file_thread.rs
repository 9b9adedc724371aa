//! Files of sessions are written, read and removed by a thread of its own, in the order in which it
//! is asked to: a disk that takes its time does not hold up the engine.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::file::{Saved, SessionFileError};

/// Files that wait while one is written. Each holds a cache in the host's memory, so whoever comes
/// with more waits.
const WAITING_MAX: usize = 2;

/// Told when a file is done with: what is in it where it was read, or why it was not.
type Done<T> = Box<dyn FnOnce(Result<T, SessionFileError>) + Send>;

enum Job {
    Write { saved: Box<Saved>, path: PathBuf, durable: bool, done: Done<()> },
    Read { path: PathBuf, made_by: String, done: Done<Saved> },
    Remove(PathBuf),
    Flush(SyncSender<()>),
}

/// What hands files to the thread; it ends with the last of these.
#[derive(Clone, Debug)]
pub struct FileThread {
    jobs: SyncSender<Job>,
}

impl FileThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's, where there can be no thread.
    pub fn start() -> io::Result<Self> {
        let (jobs, receiver) = sync_channel(WAITING_MAX);
        std::thread::Builder::new().name("files".into()).spawn(move || work(&receiver))?;
        Ok(Self { jobs })
    }

    /// Writes a file as [`Saved::write`] does, and says when it is done.
    pub fn write(
        &self,
        saved: Saved,
        path: PathBuf,
        durable: bool,
        done: impl FnOnce(Result<(), SessionFileError>) + Send + 'static,
    ) {
        self.send(Job::Write { saved: Box::new(saved), path, durable, done: Box::new(done) });
    }

    /// Reads a file as [`Saved::read`] does, and says what is in it.
    pub fn read(
        &self,
        path: PathBuf,
        made_by: String,
        done: impl FnOnce(Result<Saved, SessionFileError>) + Send + 'static,
    ) {
        self.send(Job::Read { path, made_by, done: Box::new(done) });
    }

    /// Removes a file, if there is one.
    pub fn remove(&self, path: PathBuf) {
        self.send(Job::Remove(path));
    }

    /// Waits until all that was asked for before is done.
    pub fn flush(&self) {
        let (reply, done) = sync_channel(1);
        self.send(Job::Flush(reply));
        let _ = done.recv(); // an error: the thread is gone, and nothing is to be waited for
    }

    fn send(&self, job: Job) {
        // The thread ends after its senders, or with a panic, which has been told.
        let Err(lost) = self.jobs.send(job) else { return };
        let gone = |path| {
            let source = io::Error::other("the thread that writes files is gone");
            SessionFileError::Io { path, source }
        };
        match lost.0 {
            Job::Write { path, done, .. } => done(Err(gone(path))),
            Job::Read { path, done, .. } => done(Err(gone(path))),
            Job::Remove(_) | Job::Flush(_) => {}
        }
    }
}

fn work(jobs: &Receiver<Job>) {
    for job in jobs {
        match job {
            Job::Write { saved, path, durable, done } => done(saved.write(&path, durable)),
            Job::Read { path, made_by, done } => done(Saved::read(&path, &made_by)),
            Job::Remove(path) => {
                let _ = fs::remove_file(path); // a leftover goes at the next start
            }
            Job::Flush(reply) => {
                let _ = reply.send(()); // whoever asked may have given up
            }
        }
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
        let (thread, path) = (FileThread::start().expect("a thread"), folder.path().join("file"));
        let (told, results) = channel();
        let write = |session, path: &std::path::Path| {
            let told = told.clone();
            let done =
                move |written: Result<(), _>| told.send(written.is_ok()).expect("it is read");
            thread.write(saved(session), path.to_owned(), true, done);
        };
        (0..20).for_each(|session| write(session, &path));
        thread.flush();
        assert_eq!(Saved::read(&path, "this").expect("whole"), saved(19));
        thread.remove(path.clone());
        write(5, &path.join("below a file that is gone"));
        fs::write(folder.path().join("plain"), b"").expect("written");
        write(6, &folder.path().join("plain").join("below a file"));
        thread.flush();
        let results: Vec<_> = results.try_iter().collect();
        assert_eq!(results[..20], [true; 20]);
        assert_eq!(results[20..], [true, false]);
    }
}

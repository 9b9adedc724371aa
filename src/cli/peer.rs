//! The process at the other end of a daemon's socket, by the kernel's word.
//!
//! A socket's path proves nothing about who listens there, and a daemon may say any process id of
//! itself. The kernel names the user that listens when a client connects, and with each piece of
//! an answer the process that wrote it.

use std::fs;
use std::io::{self, IoSliceMut, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, UnixCredentials, getsockopt, recvmsg, setsockopt, sockopt,
};

/// Permission bits of those who are neither the owner nor root.
const WRITABLE_BY_GROUP_OR_OTHERS: u32 = 0o022;

/// The user that listens on a connected socket, unless it is one to trust with prompts: this
/// process's own user, root, or the owner of the socket's folder where nobody else can have made
/// that folder.
pub(super) fn untrusted_user(stream: &UnixStream, socket: &Path) -> io::Result<Option<u32>> {
    let uid = getsockopt(stream, sockopt::PeerCredentials)?.uid();
    let own = rustix::process::geteuid().as_raw();
    let is_trusted = || uid == own || uid == 0 || owner_of_folder(socket, own) == Some(uid);
    Ok((!is_trusted()).then_some(uid))
}

/// The owner of a socket's folder; `None` where others than root, `own` and that owner could have
/// made the folder, or can write to it.
fn owner_of_folder(socket: &Path, own: u32) -> Option<u32> {
    let folder = fs::canonicalize(socket.parent()?).ok()?;
    let owner = fs::metadata(&folder).ok().filter(is_written_by_its_owner)?.uid();
    let is_safe = |folder: &Path| {
        fs::metadata(folder).is_ok_and(|found| {
            is_written_by_its_owner(&found) && (found.uid() == 0 || found.uid() == own)
        })
    };
    folder.ancestors().skip(1).all(is_safe).then_some(owner)
}

fn is_written_by_its_owner(folder: &fs::Metadata) -> bool {
    folder.mode() & WRITABLE_BY_GROUP_OR_OTHERS == 0
}

/// The id of the process that wrote to a socket last; 0 where the kernel did not say.
#[derive(Clone, Debug, Default)]
pub(super) struct Writer(Arc<AtomicI32>);

impl Writer {
    pub(super) fn pid(&self) -> Option<i32> {
        Some(self.0.load(Ordering::Acquire)).filter(|pid| *pid > 0)
    }
}

/// Reads a socket and notes who wrote to it.
#[derive(Debug)]
pub(super) struct CredentialReader {
    stream: UnixStream,
    writer: Writer,
    control: Vec<u8>,
}

impl CredentialReader {
    /// Must be made before the other end writes: the kernel notes the writer as it writes.
    pub(super) fn new(stream: UnixStream) -> io::Result<(Self, Writer)> {
        setsockopt(&stream, sockopt::PassCred, &true)?;
        let writer = Writer::default();
        let control = cmsg_space!(UnixCredentials);
        Ok((Self { stream, writer: writer.clone(), control }, writer))
    }
}

impl Read for CredentialReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let fd = self.stream.as_raw_fd();
        let mut parts = [IoSliceMut::new(buffer)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = match recvmsg::<()>(fd, &mut parts, Some(&mut self.control), flags) {
            // `BufRead` tries again.
            Err(Errno::EINTR) => return Err(io::ErrorKind::Interrupted.into()),
            message => message?,
        };
        for part in message.cmsgs()? {
            if let ControlMessageOwned::ScmCredentials(credentials) = part {
                self.writer.0.store(credentials.pid(), Ordering::Release);
            }
        }
        Ok(message.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_kernel_names_the_process_that_wrote() {
        let (near, mut far) = UnixStream::pair().expect("sockets");
        let (mut reader, writer) = CredentialReader::new(near).expect("it takes the option");
        assert_eq!(writer.pid(), None);
        far.write_all(b"hello").expect("written");
        let mut found = [0; 5];
        reader.read_exact(&mut found).expect("read");
        assert_eq!(&found, b"hello");
        assert_eq!(writer.pid(), i32::try_from(std::process::id()).ok());
    }

    #[test]
    fn a_folder_that_somebody_else_can_have_made_vouches_for_nobody() {
        let root = tempfile::tempdir().expect("a folder, in one that everybody may write to");
        let socket = root.path().join("hob.sock");
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(owner_of_folder(&socket, own), None, "{}", socket.display());
        assert_eq!(owner_of_folder(Path::new("/proc/hob.sock"), own), Some(0));
        fs::set_permissions(root.path(), PermissionsExt::from_mode(0o777)).expect("it is ours");
        assert_eq!(owner_of_folder(&socket, own), None);
    }
}

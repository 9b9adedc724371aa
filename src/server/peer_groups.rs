//! The groups of whoever is at the other end of a Unix socket, as the kernel noted them when it
//! connected: also those that a service manager or a login gave its process alone.

use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::GetStruct;

/// Reads a list of exactly `N` groups: nix, whose call it is, takes values of a fixed size.
#[derive(Clone, Copy)]
struct Groups<const N: usize>;

type Read = fn(BorrowedFd<'_>) -> Result<Vec<u32>, Errno>;

macro_rules! readers {
    ($($count:literal)*) => {
        $(const _: () = {
            type Exactly = Groups<$count>;
            nix::getsockopt_impl!(
                Exactly,
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                [u32; $count],
                GetStruct<[u32; $count]>
            );
        };)*
        /// By the number of groups.
        const READERS: &[Read] =
            &[$(|socket| getsockopt(&socket, Groups::<$count>).map(Vec::from)),*];
    };
}

readers!(
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32
    33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64
);

/// The supplementary groups of the peer; `None` where the kernel does not say, or there are more
/// than 64.
pub(super) fn peer_groups(socket: BorrowedFd<'_>) -> Option<Vec<u32>> {
    for read in READERS {
        match read(socket) {
            Ok(groups) => return Some(groups),
            Err(Errno::ERANGE) => {} // there are more
            Err(_) => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use rustix::process::{Gid, getgroups};
    use rustix::thread::set_thread_groups;

    use super::*;

    /// Of a thread that has the groups given, if it may take them, else those of the process.
    fn of_thread(groups: Vec<u32>) -> (Vec<u32>, Option<Vec<u32>>) {
        let thread = std::thread::spawn(move || {
            let wanted: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
            let taken = set_thread_groups(&wanted).is_ok();
            assert!(taken || !rustix::process::geteuid().is_root(), "root may");
            let own = getgroups().expect("the kernel tells a thread its groups");
            let (here, there) = UnixStream::pair().expect("a pair of sockets");
            let found = peer_groups(here.as_fd());
            drop(there);
            (own.into_iter().map(Gid::as_raw).collect(), found)
        });
        thread.join().expect("no panic")
    }

    #[test]
    fn the_kernel_names_the_groups_of_the_peer() {
        for count in [0, 1, 5, 64] {
            let (own, found) = of_thread((0..count).map(|at| 70_000 + at).collect());
            assert_eq!(found, Some(own));
        }
    }
}

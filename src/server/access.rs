//! Who may connect: users and groups of the configuration, against what the kernel says of a peer.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use thiserror::Error;

use super::peer_groups::peer_groups;
use crate::config::{Config, Who};
use crate::engine::{Quota, Quotas};

/// A name of the configuration that the system does not know.
#[derive(Debug, Error)]
#[error("{key}: the system knows no {kind} {name:?}")]
pub struct AccessError {
    key: &'static str,
    kind: &'static str,
    name: String,
}

/// Peer of a connection, as reported by the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// User.
    pub uid: u32,
    /// Group that its process runs under.
    pub gid: u32,
    /// Its other groups; `None` where the kernel does not say.
    pub groups: Option<Vec<u32>>,
}

impl Peer {
    /// The peer of a connected Unix socket, as it was when it connected.
    ///
    /// # Errors
    /// If the kernel does not name its user.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let credentials = getsockopt(&socket, PeerCredentials)?;
        Ok(Self { uid: credentials.uid(), gid: credentials.gid(), groups: peer_groups(socket) })
    }
}

/// Users and groups that may connect; everybody where both are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    users: BTreeSet<u32>,
    groups: BTreeSet<u32>,
}

impl Access {
    /// Looks up the users and groups of a configuration.
    ///
    /// # Errors
    /// Names one that the system does not know.
    pub fn resolve(config: &Config) -> Result<Self, AccessError> {
        let users = config.allow_users.iter().map(|who| uid(who, "allow_users"));
        let groups = config.allow_groups.iter().map(gid);
        Ok(Self {
            users: users.collect::<Result<_, _>>()?,
            groups: groups.collect::<Result<_, _>>()?,
        })
    }

    /// True if a peer may connect. Root may, and the daemon's own user. A peer's groups are those
    /// that its process has; where the kernel does not tell them, those that the system's user
    /// database has of the user.
    #[must_use]
    pub fn allows(&self, peer: &Peer) -> bool {
        let own = rustix::process::geteuid().as_raw();
        let open = self.users.is_empty() && self.groups.is_empty();
        if open || peer.uid == 0 || peer.uid == own || self.users.contains(&peer.uid) {
            return true;
        }
        if self.groups.is_empty() {
            return false;
        }
        let listed = |group: &u32| self.groups.contains(group);
        listed(&peer.gid)
            || match &peer.groups {
                Some(groups) => groups.iter().any(listed),
                None => groups_of(peer.uid).iter().any(listed),
            }
    }
}

/// The groups that the user database has of a user.
fn groups_of(uid: u32) -> Vec<u32> {
    let Ok(Some(user)) = User::from_uid(Uid::from_raw(uid)) else { return Vec::new() };
    let Ok(name) = std::ffi::CString::new(user.name) else { return Vec::new() };
    let groups = getgrouplist(&name, user.gid).unwrap_or_default();
    groups.into_iter().map(Gid::as_raw).collect()
}

/// The limits of users in a configuration.
///
/// # Errors
/// Names a user that the system does not know.
pub fn quotas(config: &Config) -> Result<Quotas, AccessError> {
    let limit = |value: u32| (value > 0).then_some(value as usize);
    let bytes = |mib: u32| (mib > 0).then_some(u64::from(mib) << 20);
    let default = Quota {
        sessions_max: limit(config.user_sessions_max),
        kv_bytes_max: bytes(config.user_kv_mib_max),
        requests_queued_max: limit(config.user_requests_queued_max),
        requests_running_max: limit(config.user_requests_running_max),
    };
    let halved_but_for = Some(rustix::process::geteuid().as_raw());
    let mut quotas = Quotas { default, halved_but_for, ..Quotas::default() };
    // What is said of one user is said, even where it is that nothing limits it.
    let unlimited = Quota::UNLIMITED;
    let own_limit = |value: u32| limit(value).or(unlimited.sessions_max);
    for (name, own) in &config.user_limits {
        let who = name.parse().map_or_else(|_| Who::Name(name.clone()), Who::Number);
        let quota = Quota {
            sessions_max: own.sessions_max.map_or(default.sessions_max, own_limit),
            kv_bytes_max: own
                .kv_mib_max
                .map_or(default.kv_bytes_max, |mib| bytes(mib).or(unlimited.kv_bytes_max)),
            requests_queued_max: own
                .requests_queued_max
                .map_or(default.requests_queued_max, own_limit),
            requests_running_max: own
                .requests_running_max
                .map_or(default.requests_running_max, own_limit),
        };
        quotas.of.insert(uid(&who, "user_limits")?, quota);
    }
    Ok(quotas)
}

fn uid(who: &Who, key: &'static str) -> Result<u32, AccessError> {
    match who {
        Who::Number(number) => Ok(*number),
        Who::Name(name) => match User::from_name(name) {
            Ok(Some(user)) => Ok(user.uid.as_raw()),
            _ => Err(AccessError { key, kind: "user", name: name.clone() }),
        },
    }
}

fn gid(who: &Who) -> Result<u32, AccessError> {
    match who {
        Who::Number(number) => Ok(*number),
        Who::Name(name) => match Group::from_name(name) {
            Ok(Some(group)) => Ok(group.gid.as_raw()),
            _ => Err(AccessError { key: "allow_groups", kind: "group", name: name.clone() }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::UserLimits;

    #[test]
    fn names_and_numbers_are_looked_up_and_unknown_ones_named() {
        let mut config = Config {
            allow_users: vec![Who::Name("daemon".into()), Who::Number(4242)],
            allow_groups: vec![Who::Name("root".into())],
            ..Config::default()
        };
        let access = Access::resolve(&config).expect("every system has them");
        let may = |uid, gid, groups: &[u32]| {
            access.allows(&Peer { uid, gid, groups: Some(groups.to_vec()) })
        };
        assert!(may(1, 999_999, &[]) && may(4242, 999_999, &[]));
        assert!(may(0, 999_999, &[]), "root");
        assert!(may(54_321, 0, &[]), "by the group of its process");
        assert!(may(54_321, 999_999, &[7, 0]), "by another of its groups");
        assert!(!may(54_321, 999_999, &[7]));
        let unknown = Peer { uid: 54_321, gid: 999_999, groups: None };
        assert!(!access.allows(&unknown), "the user database knows nothing of it");
        assert!(Access::default().allows(&unknown), "no list lets everybody in");
        config.allow_users.push(Who::Name("nobody-of-this-name".into()));
        let error = Access::resolve(&config).expect_err("unknown").to_string();
        assert_eq!(error, "allow_users: the system knows no user \"nobody-of-this-name\"");
    }

    #[test]
    fn a_users_own_limits_override_the_default_ones() {
        let own =
            UserLimits { sessions_max: Some(0), kv_mib_max: Some(2), ..UserLimits::default() };
        let config = Config {
            user_sessions_max: 3,
            user_requests_queued_max: 5,
            user_limits: [("4242".to_owned(), own)].into(),
            ..Config::default()
        };
        let quotas = quotas(&config).expect("a number needs no name");
        assert_eq!(quotas.default.sessions_max, Some(3));
        let own = quotas.of[&4242];
        assert_eq!((own.sessions_max, own.kv_bytes_max), (Some(usize::MAX), Some(2 << 20)));
        assert_eq!((own.requests_queued_max, own.requests_running_max), (Some(5), None));
    }
}

//! Users of a volume. It must not be taken away under them without their owner's word (`--force`).
//!
//! An NBD client, or a frontend of vhost-user, uses it as long as it is connected, idle or not; a
//! file (FUSE) is used by whoever has it open. A loop device has the file open, so a file system
//! that is mounted from it counts.

use super::Pool;
use forebay_admin::{AdminError, ErrorKind};
use forebay_format::VolumeId;
use std::path::PathBuf;

/// Clients that a message names; of others it gives the number.
const NAMED_MAX: usize = 3;

/// Who uses a volume.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Users {
    /// NBD clients that have chosen an export of it, as they are known.
    pub(crate) clients: Vec<String>,
    /// Its files that are open, and how often.
    pub(crate) files: Vec<(PathBuf, u64)>,
    /// Frontends of virtual machines, as they are known.
    pub(crate) frontends: Vec<String>,
}

impl Users {
    /// Nobody.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.files.is_empty() && self.frontends.is_empty()
    }

    /// In words.
    fn text(&self) -> String {
        let mut parts = Vec::new();
        if !self.clients.is_empty() {
            let mut named = self.clients.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
            if self.clients.len() > NAMED_MAX {
                named += &format!(" and {} more", self.clients.len() - NAMED_MAX);
            }
            let s = if self.clients.len() == 1 { "" } else { "s" };
            parts.push(format!("{} NBD client{s} connected ({named})", self.clients.len()));
        }
        if !self.frontends.is_empty() {
            parts.push(format!("a virtual machine is connected ({})", self.frontends.join(", ")));
        }
        for (path, open) in &self.files {
            let times = if *open == 1 { "once".into() } else { format!("{open} times") };
            parts.push(format!("{} is open {times}", path.display()));
        }
        parts.join(", ")
    }

    /// Why `doing` is refused.
    pub fn refuse(&self, doing: &str, name: &str) -> AdminError {
        let find = match self.files.first() {
            None => String::new(),
            Some((path, _)) => format!(
                " (losetup --associated {0} and fuser --verbose {0} tell who has the file open)",
                path.display()
            ),
        };
        AdminError::new(
            ErrorKind::Conflict,
            format!("cannot {doing} {name}: it is in use: {}", self.text()),
            format!("unmount it and disconnect its clients first{find}, or cut them off with --force"),
        )
    }
}

impl Pool {
    /// Who uses a volume.
    pub(super) fn users_of(&self, id: VolumeId) -> Users {
        Users {
            clients: self.server.clients_of(&self.reactor, id),
            files: self.open_files(id),
            frontends: self.frontends(id),
        }
    }

    /// Who uses the volume of this name; nobody if there is none.
    pub fn users(&self, name: &str) -> Users {
        self.find(name).map_or_else(Users::default, |id| self.users_of(id))
    }

    /// How many use a volume: connections, and open handles of its files.
    pub(super) fn user_count(&self, id: VolumeId) -> u64 {
        let open: u64 = self.open_files(id).iter().map(|(_, open)| open).sum();
        self.server.connections_to(id) + self.frontends(id).len() as u64 + open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_who_and_what_to_do() {
        let files = vec![(PathBuf::from("/srv/v/db.img"), 2)];
        let users = Users { clients: vec!["uid 0 (process 7)".into()], files, frontends: Vec::new() };
        let error = users.refuse("detach", "db");
        assert_eq!(error.kind, ErrorKind::Conflict);
        assert_eq!(
            error.what,
            "cannot detach db: it is in use: 1 NBD client connected (uid 0 (process 7)), /srv/v/db.img is open 2 times"
        );
        assert!(error.hint.contains("fuser --verbose /srv/v/db.img") && error.hint.contains("--force"));
        let crowd = Users { clients: vec!["uid 1".into(); 5], ..Users::default() };
        let guest = Users { frontends: vec!["uid 0 (process 9)".into()], ..Users::default() };
        let said = guest.refuse("detach", "db").what;
        assert_eq!(
            said,
            "cannot detach db: it is in use: a virtual machine is connected (uid 0 (process 9))"
        );
        assert!(
            crowd
                .refuse("detach", "db")
                .what
                .contains("5 NBD clients connected (uid 1, uid 1, uid 1 and 2 more)")
        );
    }
}

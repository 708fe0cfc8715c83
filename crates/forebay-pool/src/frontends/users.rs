//! Users of a volume. It must not be removed while in use without the operator's consent
//! (`--force`).
//!
//! An NBD client, or a frontend of vhost-user, uses it as long as it is connected, idle or not; a
//! process uses a file (FUSE) as long as it has it open. A loop device has the file open, so a file
//! system mounted from it counts. A block device is in use while it is open or mounted.

use super::ExclusiveOpens;
use crate::may_wait::MayWait;
use crate::ublk_device::UblkDevice;
use forebay_admin::{AdminError, MessageId};
use std::path::PathBuf;

/// Clients that a message names; it counts the others.
const NAMED_MAX: usize = 3;

/// The users of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Users {
    /// NBD clients that have chosen an export of it, as the server knows them.
    pub(crate) clients: Vec<String>,
    /// Its open files, with the number of handles.
    pub(crate) files: Vec<(PathBuf, u64)>,
    /// Its block devices in use, and how.
    pub(crate) devices: Vec<(PathBuf, String)>,
    /// Frontends of virtual machines, as the server knows them.
    pub(crate) frontends: Vec<String>,
    /// Its files that other mounts hide, and the mount points.
    pub(crate) covered: Vec<(PathBuf, PathBuf)>,
}

impl Users {
    /// There are no users.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
            && self.files.is_empty()
            && self.devices.is_empty()
            && self.frontends.is_empty()
            && self.covered.is_empty()
    }

    /// ExclusiveOpens block devices, so that no other program can mount them.
    ///
    /// # Errors
    /// The users, if some devices are in use.
    pub fn of_devices(may_wait: &MayWait, devices: &[UblkDevice]) -> Result<ExclusiveOpens, Self> {
        let (mut claims, mut used) = (ExclusiveOpens::new(), Vec::new());
        for device in devices {
            let openers = device.openers(may_wait);
            match device.claim(may_wait) {
                _ if !openers.is_empty() => {
                    used.push((device.path(), format!("open in {}", openers.join(", "))))
                }
                Ok(Some(claim)) => claims.push((device.number(), claim)),
                Ok(None) => {
                    used.push((
                        device.path(),
                        "mounted, or part of another device or of the swap space".into(),
                    ));
                }
                Err(why) if device.is_there() => used.push((
                    device.path(),
                    format!("possibly in use: its users cannot be determined ({why})"),
                )),
                Err(_) => {}
            }
        }
        if used.is_empty() { Ok(claims) } else { Err(Self { devices: used, ..Self::default() }) }
    }

    /// Its block devices are in use.
    pub fn are_of_devices(&self) -> bool {
        !self.devices.is_empty()
    }

    /// Describes the users.
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
        for (path, by) in &self.covered {
            parts.push(format!("a mount on {} hides {}", by.display(), path.display()));
        }
        parts.extend(self.devices.iter().map(|(path, by)| format!("{} is {by}", path.display())));
        parts.join(", ")
    }

    /// Returns the error that refuses `doing`.
    pub fn refuse(&self, doing: &str, name: &str) -> AdminError {
        let device = self.devices.first().map(|(path, _)| path.display());
        let find = match self.files.first() {
            None => device.map_or_else(String::new, |path| format!(" (lsblk {path} shows what uses it)")),
            Some((path, _)) => format!(
                " (losetup --associated {0} and fuser --verbose {0} show the users of the file)",
                path.display()
            ),
        };
        AdminError::new(
            MessageId::VolumeInUse,
            format!("cannot {doing} {name}: it is in use: {}", self.text()),
            format!("unmount it and disconnect its clients first{find}, or cut them off with --force"),
        )
    }
}

impl std::fmt::Display for Users {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_admin::ErrorKind;

    #[test]
    fn refusal_names_users_and_remedy() {
        let files = vec![(PathBuf::from("/srv/v/db.img"), 2)];
        let users = Users { clients: vec!["uid 0 (process 7)".into()], files, ..Users::default() };
        let error = users.refuse("detach", "db");
        assert_eq!(error.kind, ErrorKind::Conflict);
        assert_eq!(
            error.what,
            "cannot detach db: it is in use: 1 NBD client connected (uid 0 (process 7)), /srv/v/db.img is open 2 times"
        );
        assert!(error.hint.contains("fuser --verbose /srv/v/db.img") && error.hint.contains("--force"));
        let device = vec![(PathBuf::from("/dev/forebay/db"), "mounted".to_owned())];
        let users = Users { devices: device, ..Users::default() };
        assert!(!users.is_empty());
        let error = users.refuse("detach", "db");
        assert!(error.what.ends_with("in use: /dev/forebay/db is mounted"), "{}", error.what);
        assert!(error.hint.contains("lsblk /dev/forebay/db"), "{}", error.hint);
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

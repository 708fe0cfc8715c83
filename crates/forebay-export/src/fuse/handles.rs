//! Open files and directories of one connection, with limits on their number and on the size of
//! their texts.
//!
//! A text is created when its file is opened, and kept until it is closed. So users who may open
//! files can make the server hold texts.
//!
//! Invariants
//! - Only handles returned by [`Handles::keep`] are valid, until they are released.
//! - Each user stays within [`UserLimits`], and all users together leave room for root, who must be
//!   able to look when a user has reached the limits.

use super::reply::{DirectoryEntry, Errno};
use super::tree::Access;
use std::collections::BTreeMap;

/// The user with reserved room.
const ROOT: u32 = 0;
/// Bytes that an entry of a directory counts besides its name.
const ENTRY_BYTES: usize = 64;

/// Limits of users other than root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserLimits {
    /// Files and directories of one user.
    pub handles_max: usize,
    /// Their texts and lists of names, in bytes.
    pub bytes_max: usize,
    /// Files and directories of all of them together.
    pub all_handles_max: usize,
    /// Texts and lists of names of all of them together, in bytes.
    pub all_bytes_max: usize,
}

impl UserLimits {
    /// No limits but those of all users, root included.
    pub const NONE: Self = Self {
        handles_max: usize::MAX,
        bytes_max: usize::MAX,
        all_handles_max: usize::MAX,
        all_bytes_max: usize::MAX,
    };
}

/// An open file or directory.
#[derive(Debug)]
pub(super) enum Handle {
    Volume { writable: bool },
    Text { text: Vec<u8>, access: Access },
    Directory(Vec<DirectoryEntry>),
}

impl Handle {
    fn bytes(&self) -> usize {
        match self {
            Self::Volume { .. } => 0,
            Self::Text { text, .. } => text.capacity(),
            Self::Directory(entries) => entries.iter().map(|entry| ENTRY_BYTES + entry.name.len()).sum(),
        }
    }
}

/// Totals of one user, or of all but root.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    handles: usize,
    bytes: usize,
}

impl Held {
    fn is_within(self, bytes: usize, handles_max: usize, bytes_max: usize) -> bool {
        self.handles < handles_max && self.bytes.saturating_add(bytes) <= bytes_max
    }

    fn add(&mut self, bytes: usize) {
        self.handles += 1;
        self.bytes += bytes;
    }

    fn take(&mut self, bytes: usize) {
        self.handles -= 1;
        self.bytes -= bytes;
    }
}

/// All handles of a connection. A handle's number is its index.
#[derive(Debug)]
pub(super) struct Handles {
    handles_max: usize,
    limits: UserLimits,
    open: Vec<Option<(Handle, u32)>>,
    /// Free indexes.
    free: Vec<usize>,
    /// Users other than root with open handles.
    users: BTreeMap<u32, Held>,
    all: Held,
}

impl Handles {
    pub(super) fn new(handles_max: usize, limits: UserLimits) -> Self {
        let (open, free) = (Vec::new(), Vec::new());
        Self { handles_max, limits, open, free, users: BTreeMap::new(), all: Held::default() }
    }

    /// Stores a handle that a user has opened, and returns its number.
    pub(super) fn keep(&mut self, handle: Handle, user: u32) -> Result<u64, Errno> {
        let bytes = handle.bytes();
        if !self.may_open(user, bytes) || (self.free.is_empty() && self.open.len() >= self.handles_max) {
            return Err(Errno::TooManyOpen);
        }
        if user != ROOT {
            self.users.entry(user).or_default().add(bytes);
            self.all.add(bytes);
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.open.push(None);
            self.open.len() - 1
        });
        self.open[index] = Some((handle, user));
        Ok(index as u64)
    }

    fn may_open(&self, user: u32, bytes: usize) -> bool {
        let UserLimits { handles_max, bytes_max, all_handles_max, all_bytes_max } = self.limits;
        let held = self.users.get(&user).copied().unwrap_or_default();
        user == ROOT
            || held.is_within(bytes, handles_max, bytes_max)
                && self.all.is_within(bytes, all_handles_max, all_bytes_max)
    }

    pub(super) fn get(&self, handle: u64) -> Result<&Handle, Errno> {
        let index = usize::try_from(handle).map_err(|_| Errno::BadHandle)?;
        let open = self.open.get(index).and_then(Option::as_ref);
        open.map(|(handle, _)| handle).ok_or(Errno::BadHandle)
    }

    pub(super) fn release(&mut self, handle: u64) -> Result<(), Errno> {
        let index = usize::try_from(handle).map_err(|_| Errno::BadHandle)?;
        let (handle, user) = self.open.get_mut(index).and_then(Option::take).ok_or(Errno::BadHandle)?;
        self.free.push(index);
        let Some(held) = self.users.get_mut(&user) else { return Ok(()) };
        let bytes = handle.bytes();
        held.take(bytes);
        self.all.take(bytes);
        if held.handles == 0 {
            self.users.remove(&user);
        }
        Ok(())
    }

    /// Returns the number of handles of volume files.
    pub(super) fn volumes(&self) -> usize {
        let open = self.open.iter().flatten();
        open.filter(|(handle, _)| matches!(handle, Handle::Volume { .. })).count()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn text(bytes: usize) -> Handle {
        Handle::Text { text: vec![0; bytes], access: Access { read: true, write: false } }
    }

    #[test]
    fn users_have_bounds_and_root_has_the_rest() {
        let limits = UserLimits { handles_max: 4, bytes_max: 100, all_handles_max: 6, all_bytes_max: 150 };
        let mut handles = Handles::new(8, limits);
        let refused = |result: Result<u64, Errno>| assert_eq!(result, Err(Errno::TooManyOpen));
        let first = handles.keep(text(60), 1).unwrap();
        refused(handles.keep(text(41), 1)); // bytes of one user
        handles.keep(text(40), 1).unwrap();
        refused(handles.keep(text(51), 2)); // bytes of all users
        handles.keep(text(50), 2).unwrap();
        refused(handles.keep(text(1), 3));
        handles.release(first).unwrap();
        for _ in 0..3 {
            handles.keep(text(0), 1).unwrap();
        }
        refused(handles.keep(text(0), 1)); // handles of one user
        handles.keep(text(0), 2).unwrap();
        refused(handles.keep(text(0), 2)); // handles of all users
        handles.keep(text(1000), ROOT).unwrap();
        let last = handles.keep(text(0), ROOT).unwrap();
        refused(handles.keep(text(0), ROOT)); // handles of the connection
        handles.release(last).unwrap();
        assert_eq!(handles.release(last), Err(Errno::BadHandle));
        assert_eq!(handles.keep(text(0), ROOT), Ok(last));
    }

    #[test]
    fn closed_handles_do_not_count() {
        let limits = UserLimits { handles_max: 2, bytes_max: 10, ..UserLimits::NONE };
        let mut handles = Handles::new(8, limits);
        for _ in 0..100 {
            let open = [5, 5].map(|bytes| handles.keep(text(bytes), 7).unwrap());
            open.into_iter().for_each(|handle| handles.release(handle).unwrap());
        }
        assert!(handles.users.is_empty() && handles.all.handles == 0 && handles.all.bytes == 0);
        assert!(handles.open.len() <= 2);
    }
}

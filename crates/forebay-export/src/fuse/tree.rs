//! Tree of a FUSE mount: the interface, and the tree that consists of one volume.
//!
//! A tree replies at once and does no I/O: the session returns reads and writes of a volume as
//! requests, and the text of a control file is created when it is opened.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use super::reply::{Attributes, DirectoryEntry, Errno};
use super::wire::ROOT_NODE;

/// Access mode of an open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
}

/// Content of an open file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A volume: reads and writes become requests.
    Volume,
    /// A text, as of the open. The tree's owner receives each write as one text.
    Text(Vec<u8>),
}

/// Attributes to change; `None` keeps one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Change {
    /// Permission bits.
    pub permissions: Option<u16>,
    /// Owning user.
    pub uid: Option<u32>,
    /// Owning group.
    pub gid: Option<u32>,
}

impl Change {
    /// Returns whether there is nothing to change.
    pub fn is_empty(&self) -> bool {
        *self == Change::default()
    }
}

/// A tree of files and directories. Node 1 is the root; the tree chooses the other numbers, but
/// never reuses a number for another file.
pub trait Tree {
    /// Returns the attributes of a node.
    ///
    /// [`Errno::NotFound`] if the node does not exist, or no longer exists.
    fn attributes(&mut self, node: u64) -> Result<Attributes, Errno>;

    /// Returns the node of a name in a directory. It stays valid until the kernel has forgotten all
    /// lookups of it.
    ///
    /// # Errors
    /// [`Errno::NotFound`], [`Errno::NotADirectory`].
    fn lookup(&mut self, directory: u64, name: &[u8]) -> Result<u64, Errno>;

    /// Drops `count` lookups of a node.
    fn forget(&mut self, node: u64, count: u64);

    /// Returns the entries of a directory, without `.` and `..`.
    ///
    /// # Errors
    /// [`Errno::NotFound`], [`Errno::NotADirectory`].
    fn list(&mut self, directory: u64) -> Result<Vec<DirectoryEntry>, Errno>;

    /// Opens a file.
    ///
    /// The reason for a refusal; [`Errno::IsADirectory`].
    fn open(&mut self, node: u64, access: Access) -> Result<Content, Errno>;

    /// Changes owner or permissions.
    ///
    /// [`Errno::NotPermitted`] where it is not supported.
    fn change(&mut self, node: u64, change: Change) -> Result<(), Errno>;

    /// Returns the bytes of all files together, and their number.
    fn totals(&self) -> (u64, u64);
}

/// The volume as one file, alone or in a directory.
#[derive(Debug, Clone)]
pub struct VolumeTree {
    name: Option<Vec<u8>>,
    size_bytes: u64,
    permissions: u16,
    uid: u32,
    gid: u32,
    created_s: u64,
}

/// Node of the volume's file where the root is a directory.
const FILE_NODE: u64 = 2;
/// How long the kernel caches attributes; after a change of size they may be wrong for that time.
const VALID: Duration = Duration::from_secs(1);
/// Preferred length of transfers: the block of the cache.
const BLOCK_BYTES: u32 = 4096;

impl VolumeTree {
    /// Creates a tree with a volume as the file `name` of a directory, or as the root itself.
    /// `owner` is user and group; `now_s` is the time in seconds since 1970. Only the owner may
    /// read and write it, until a user with the right to do so changes that.
    pub fn new(name: Option<&OsStr>, size_bytes: u64, owner: (u32, u32), now_s: u64) -> VolumeTree {
        VolumeTree {
            name: name.map(|name| name.as_bytes().to_vec()),
            size_bytes,
            permissions: 0o600,
            uid: owner.0,
            gid: owner.1,
            created_s: now_s,
        }
    }

    /// Sets the size of the file. The kernel notices within a second.
    pub fn set_size_bytes(&mut self, size_bytes: u64) {
        self.size_bytes = size_bytes;
    }

    fn file_node(&self) -> u64 {
        if self.name.is_some() { FILE_NODE } else { ROOT_NODE }
    }
}

impl Tree for VolumeTree {
    fn attributes(&mut self, node: u64) -> Result<Attributes, Errno> {
        let is_file = node == self.file_node();
        if !is_file && node != ROOT_NODE {
            return Err(Errno::NotFound);
        }
        let size_bytes = if is_file { self.size_bytes } else { 0 };
        Ok(Attributes {
            directory: !is_file,
            permissions: if is_file { self.permissions } else { 0o755 },
            size_bytes,
            allocated_bytes: size_bytes,
            uid: self.uid,
            gid: self.gid,
            modified_s: self.created_s,
            block_bytes: BLOCK_BYTES,
            valid: VALID,
        })
    }

    fn lookup(&mut self, directory: u64, name: &[u8]) -> Result<u64, Errno> {
        match &self.name {
            Some(file) if directory == ROOT_NODE && file == name => Ok(FILE_NODE),
            Some(_) if directory == ROOT_NODE => Err(Errno::NotFound),
            _ => Err(Errno::NotADirectory),
        }
    }

    /// Both nodes exist as long as the mount.
    fn forget(&mut self, _node: u64, _count: u64) {}

    fn list(&mut self, directory: u64) -> Result<Vec<DirectoryEntry>, Errno> {
        match &self.name {
            Some(name) if directory == ROOT_NODE => {
                Ok(vec![DirectoryEntry { node: FILE_NODE, directory: false, name: name.clone() }])
            }
            _ => Err(Errno::NotADirectory),
        }
    }

    fn open(&mut self, node: u64, _: Access) -> Result<Content, Errno> {
        if node != self.file_node() {
            return Err(if node == ROOT_NODE { Errno::IsADirectory } else { Errno::NotFound });
        }
        Ok(Content::Volume)
    }

    fn change(&mut self, node: u64, change: Change) -> Result<(), Errno> {
        if node != self.file_node() {
            return Err(Errno::NotPermitted);
        }
        self.permissions = change.permissions.unwrap_or(self.permissions);
        self.uid = change.uid.unwrap_or(self.uid);
        self.gid = change.gid.unwrap_or(self.gid);
        Ok(())
    }

    fn totals(&self) -> (u64, u64) {
        (self.size_bytes, 1)
    }
}

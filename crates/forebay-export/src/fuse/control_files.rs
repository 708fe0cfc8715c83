//! A tree of small text files and directories, with content from a provider: the control file
//! system.
//!
//! - A file's text is created when it is opened, so that one reader sees one state.
//! - Each `write(2)` is one text: it leaves the session as [`super::FuseStep::Store`] and the
//!   writer waits for the reply, however long that takes (`echo 1 > flush` returns when the flush
//!   is done).
//! - Sizes are shown as 0, as in `/proc`: they are unknown before the file is read.
//!
//! Invariants
//! - A node keeps its number as long as the kernel knows it, and numbers are never reused.
//! - The tree keeps the root and the nodes that the kernel has looked up and not forgotten.

use std::collections::HashMap;
use std::time::Duration;

use super::reply::{Attributes, DirectoryEntry, Errno};
use super::tree::{Access, Change, Content, Tree};
use super::wire::ROOT_NODE;

/// Type of the node at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    /// A directory.
    Directory,
    /// A file, with its permission bits, such as `0o644`, `0o444` or `0o200`.
    File {
        /// Permission bits.
        permissions: u16,
    },
}

/// Supplies the content. Paths have no slash at either end; the root is the empty path.
pub trait Provider {
    /// Returns the type of the node at a path, if there is one.
    fn find(&mut self, path: &str) -> Option<NodeKind>;

    /// Returns the names in a directory, in display order.
    fn list(&mut self, path: &str) -> Vec<(String, NodeKind)>;

    /// Returns the text of a file.
    ///
    /// The error for the reader.
    fn text(&mut self, path: &str) -> Result<String, Errno>;
}

#[derive(Debug)]
struct Node {
    path: String,
    lookups: u64,
}

/// The tree over a [`Provider`].
#[derive(Debug)]
pub struct ControlTree<P> {
    provider: P,
    owner: (u32, u32),
    now_s: u64,
    nodes: HashMap<u64, Node>,
    by_path: HashMap<String, u64>,
    last_node: u64,
    own_nodes: bool,
}

impl<P: Provider> ControlTree<P> {
    /// Creates a tree that belongs to `owner` (user and group), with `now_s` (seconds since 1970)
    /// as the time of its files.
    pub fn new(provider: P, owner: (u32, u32), now_s: u64) -> ControlTree<P> {
        let root = Node { path: String::new(), lookups: 1 };
        ControlTree {
            provider,
            owner,
            now_s,
            nodes: HashMap::from([(ROOT_NODE, root)]),
            by_path: HashMap::from([(String::new(), ROOT_NODE)]),
            last_node: ROOT_NODE,
            own_nodes: false,
        }
    }

    /// Gives every lookup of a file a node of its own. The kernel admits one writer at a time to a
    /// node (`O_TRUNC` counts as a write), and the wait is uninterruptible; so long writes need
    /// this.
    #[must_use]
    pub fn with_own_nodes(mut self) -> ControlTree<P> {
        self.own_nodes = true;
        self
    }

    /// Returns the provider.
    pub fn provider(&mut self) -> &mut P {
        &mut self.provider
    }

    /// Returns the path of a node that the kernel knows.
    pub fn path(&self, node: u64) -> Option<&str> {
        self.nodes.get(&node).map(|node| node.path.as_str())
    }

    fn known(&self, node: u64) -> Result<String, Errno> {
        self.path(node).map(str::to_owned).ok_or(Errno::NotFound)
    }

    /// Returns the number of a path, allocated if the kernel does not know it.
    fn number(&mut self, path: String) -> u64 {
        if let Some(node) = self.by_path.get(&path) {
            return *node;
        }
        self.last_node += 1;
        self.by_path.insert(path.clone(), self.last_node);
        self.nodes.insert(self.last_node, Node { path, lookups: 0 });
        self.last_node
    }
}

pub(super) fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

impl<P: Provider> Tree for ControlTree<P> {
    fn attributes(&mut self, node: u64) -> Result<Attributes, Errno> {
        let path = self.known(node)?;
        let kind = if node == ROOT_NODE { Some(NodeKind::Directory) } else { self.provider.find(&path) };
        let (directory, permissions) = match kind.ok_or(Errno::NotFound)? {
            NodeKind::Directory => (true, 0o755),
            NodeKind::File { permissions } => (false, permissions),
        };
        Ok(Attributes {
            directory,
            permissions,
            size_bytes: 0,
            allocated_bytes: 0,
            uid: self.owner.0,
            gid: self.owner.1,
            modified_s: self.now_s,
            block_bytes: 4096,
            valid: Duration::ZERO,
        })
    }

    fn lookup(&mut self, directory: u64, name: &[u8]) -> Result<u64, Errno> {
        let parent = self.known(directory)?;
        let name = std::str::from_utf8(name).map_err(|_| Errno::NotFound)?;
        let path = join(&parent, name);
        let kind = self.provider.find(&path).ok_or(Errno::NotFound)?;
        if self.own_nodes && kind != NodeKind::Directory {
            self.by_path.remove(&path);
        }
        let number = self.number(path);
        if let Some(node) = self.nodes.get_mut(&number) {
            node.lookups = node.lookups.saturating_add(1);
        }
        Ok(number)
    }

    fn forget(&mut self, number: u64, count: u64) {
        let Some(node) = self.nodes.get_mut(&number).filter(|_| number != ROOT_NODE) else { return };
        node.lookups = node.lookups.saturating_sub(count);
        if node.lookups == 0
            && let Some(node) = self.nodes.remove(&number)
            && self.by_path.get(&node.path) == Some(&number)
        {
            self.by_path.remove(&node.path);
        }
    }

    fn list(&mut self, directory: u64) -> Result<Vec<DirectoryEntry>, Errno> {
        let path = self.known(directory)?;
        let entries = self.provider.list(&path);
        let by_path = &self.by_path;
        Ok(entries
            .into_iter()
            .map(|(name, kind)| DirectoryEntry {
                // For display only; a number is allocated when the name is looked up. Zero would
                // make the entry invisible.
                node: by_path.get(&join(&path, &name)).copied().unwrap_or(u64::from(u32::MAX)),
                directory: kind == NodeKind::Directory,
                name: name.into_bytes(),
            })
            .collect())
    }

    fn open(&mut self, node: u64, access: Access) -> Result<Content, Errno> {
        let path = self.known(node)?;
        match self.provider.find(&path) {
            None => Err(Errno::NotFound),
            Some(NodeKind::Directory) => Err(Errno::IsADirectory),
            Some(NodeKind::File { .. }) if access.read => {
                self.provider.text(&path).map(|text| Content::Text(text.into_bytes()))
            }
            Some(NodeKind::File { .. }) => Ok(Content::Text(Vec::new())),
        }
    }

    fn change(&mut self, _node: u64, _change: Change) -> Result<(), Errno> {
        Err(Errno::NotPermitted)
    }

    fn totals(&self) -> (u64, u64) {
        (0, 0)
    }
}

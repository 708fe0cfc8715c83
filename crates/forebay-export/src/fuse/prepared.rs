//! Control trees whose content takes time to make: what a request needs is found out first, fetched
//! by whoever may block, and only then does the session take the request.
//!
//! A session answers at once and is used by one thread at a time. A thread that asks somebody else
//! for a text while it holds the session would stop all others. So there are three steps, of which
//! only the first and the last need it:
//! ```text
//! need  = prepared::need(session, request)    what would the tree ask its provider?
//! found = (ask whoever knows it)              without the session; may take seconds
//! step  = prepared::step(session, found, ..)  the session's own step; the provider has its answer
//! ```
//!
//! Invariant: between the first and the last step the node of the request keeps its path, as the
//! kernel does not forget a node that it asks about. Should it do so, the request fails with
//! [`Errno::NotFound`].

use super::control_files::{ControlTree, NodeKind, Provider, join};
use super::reply::Errno;
use super::request::{Body, Header, Malformed};
use super::session::{FuseStep, Session};
use super::wire::{self, ROOT_NODE, open};

/// What a request needs to know of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Need {
    /// Nothing.
    Nothing,
    /// What is at a path.
    NodeKind(String),
    /// What is in a directory.
    Listing(String),
    /// What is at a path and, if it is a file, its text.
    Text(String),
}

/// What was found; of the same sort as what was needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Nothing was needed.
    Nothing,
    /// What is at the path, if anything.
    NodeKind(Option<NodeKind>),
    /// What is in the directory.
    Listing(Vec<(String, NodeKind)>),
    /// What is at the path, if anything, and its text.
    Text(Option<NodeKind>, String),
}

/// A provider that has one answer ready: that for the request which is being taken.
#[derive(Debug)]
pub struct Prepared {
    found: Found,
}

impl Prepared {
    /// A provider that has nothing ready.
    pub fn new() -> Prepared {
        Prepared { found: Found::Nothing }
    }
}

impl Default for Prepared {
    fn default() -> Self {
        Prepared::new()
    }
}

impl Provider for Prepared {
    fn find(&mut self, _path: &str) -> Option<NodeKind> {
        match self.found {
            Found::NodeKind(kind) | Found::Text(kind, _) => kind,
            Found::Nothing | Found::Listing(_) => None,
        }
    }

    fn list(&mut self, _path: &str) -> Vec<(String, NodeKind)> {
        match &mut self.found {
            Found::Listing(entries) => std::mem::take(entries),
            _ => Vec::new(),
        }
    }

    fn text(&mut self, _path: &str) -> Result<String, Errno> {
        match &mut self.found {
            Found::Text(_, text) => Ok(std::mem::take(text)),
            _ => Err(Errno::NotFound),
        }
    }
}

/// A session over such a tree.
pub type PreparedSession = Session<ControlTree<Prepared>>;

/// What [`step`] will need for this request. Bytes that are no request need nothing.
pub fn need(session: &mut PreparedSession, bytes: &[u8], received_bytes: usize) -> Need {
    let Ok(header) = Header::decode(bytes, received_bytes) else { return Need::Nothing };
    let Some(Ok(body)) = bytes.get(wire::IN_HEADER_BYTES..).map(|body| header.decode_body(body)) else {
        return Need::Nothing;
    };
    let path = session.tree().path(header.node);
    let need = match body {
        Body::Lookup { name } => {
            let name = std::str::from_utf8(name).ok();
            path.zip(name).map(|(directory, name)| Need::NodeKind(join(directory, name)))
        }
        // The root is always there.
        Body::GetAttributes | Body::SetAttributes(_) if header.node != ROOT_NODE => {
            path.map(|path| Need::NodeKind(path.into()))
        }
        Body::Open { flags } => path.map(|path| match flags & open::ACCESS_MODE {
            open::WRITE_ONLY => Need::NodeKind(path.into()),
            _ => Need::Text(path.into()),
        }),
        Body::OpenDirectory => path.map(|path| Need::Listing(path.into())),
        _ => None,
    };
    need.unwrap_or(Need::Nothing)
}

/// [`Session::step`], with what its tree needs at hand.
///
/// # Errors
/// Those of [`Session::step`].
pub fn step(
    session: &mut PreparedSession,
    found: Found,
    bytes: &[u8],
    received_bytes: usize,
    out: &mut Vec<u8>,
) -> Result<FuseStep, Malformed> {
    session.tree().provider().found = found;
    let step = session.step(bytes, received_bytes, out);
    session.tree().provider().found = Found::Nothing;
    step
}

//! Control trees whose content takes time: the caller determines the needs of a request, fetches
//! the content on a thread that may block, and only then passes the request to the session.
//!
//! A session replies at once and is used by one thread at a time. A thread that waited for a text
//! while it holds the session would block all others. So there are three steps, of which only the
//! first and the last need the session:
//! ```text
//! need  = prepared::need(session, request)    content that the tree needs from its provider
//! found = (fetch it)                          without the session; may take seconds
//! step  = prepared::step(session, found, ..)  the session's own step; the provider has the content
//! ```
//!
//! Invariant: between the first and the last step the node of the request keeps its path, because
//! the kernel does not forget a node with a request in flight. If it does, the request fails with
//! [`Errno::NotFound`].

use super::control_files::{ControlTree, NodeKind, Provider, join};
use super::reply::Errno;
use super::request::{Body, Header, Malformed};
use super::session::{FuseStep, Session};
use super::wire::{self, ROOT_NODE, open};

/// Content that a request needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Need {
    /// Nothing.
    Nothing,
    /// The type of the node at a path.
    NodeKind(String),
    /// The content of a directory.
    Listing(String),
    /// The type of the node at a path and, if it is a file, its text.
    Text(String),
}

/// Content that was found, of the kind of the [`Need`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Nothing was needed.
    Nothing,
    /// The type of the node at the path, if there is one.
    NodeKind(Option<NodeKind>),
    /// The content of the directory.
    Listing(Vec<(String, NodeKind)>),
    /// The type of the node at the path, if there is one, and its text.
    Text(Option<NodeKind>, String),
}

/// A provider with the content for one request.
#[derive(Debug)]
pub struct Prepared {
    found: Found,
}

impl Prepared {
    /// Creates a provider without content.
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

/// Returns the content that [`step`] needs for this request. Invalid bytes need nothing.
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
        // The root always exists.
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

/// Runs [`Session::step`] with the content that its tree needs.
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

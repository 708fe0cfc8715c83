//! Access to the API: by token over TCP, by user and group over the Unix socket.
//!
//! Invariants
//! - The duration of a comparison does not depend on how much of a token is right, nor on which
//!   token it is.
//! - The method alone decides the level that a request needs, before any handler runs: handlers
//!   added later are safe.
//! - Tokens appear in no debug output and in no error.

use std::path::Path;

use axum::http::{HeaderMap, Method, StatusCode, header};
use forebay_io::PeerCred;
use subtle::ConstantTimeEq;

use super::problem::Problem;
use forebay_admin::{AdminError, MessageId};
use forebay_config::{AdminUsers, UserList};
use forebay_pool::secret_file::{FileError, FileProblem, TOKEN_BYTES_MAX, TOKEN_BYTES_MIN, read_secret};

/// Access level of a client. Each level includes the ones before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Level {
    /// Read.
    Read,
    /// Change things.
    Operate,
}

impl Level {
    /// Returns the level that a request needs.
    pub(super) fn needed(method: &Method) -> Self {
        match *method {
            Method::GET | Method::HEAD | Method::OPTIONS => Self::Read,
            _ => Self::Operate,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
        }
    }

    /// Returns the refusal of a request by a client with level `has`.
    pub(super) fn refusal(has: Option<Self>, needs: Self) -> Problem {
        let has = has.map_or("none", Self::name);
        let what = format!("this needs the level \"{}\", and you have \"{has}\"", needs.name());
        let hint = "ask the operator of the daemon: [daemon] of its configuration assigns the levels \
                    (admin_operate and admin_read for users of the socket, token_file and read_token_file \
                    over TCP)";
        Problem::new(StatusCode::FORBIDDEN, AdminError::new(MessageId::ApiLevel, what, hint))
    }
}

/// Returns true for root and the daemon's own user: they have full control anyway.
pub(super) fn may_do_everything(peer: PeerCred) -> bool {
    peer.uid == 0 || peer.uid == rustix::process::geteuid().as_raw()
}

/// Returns the level of a user on the Unix socket; `None` for one that is not listed.
pub(super) fn level_of_user(users: &AdminUsers, peer: PeerCred, groups: &[u32]) -> Option<Level> {
    let is_in = |list: &UserList| {
        list.uids.contains(&peer.uid)
            || list.gids.contains(&peer.gid)
            || groups.iter().any(|group| list.gids.contains(group))
    };
    if may_do_everything(peer) || is_in(&users.operate) {
        Some(Level::Operate)
    } else {
        is_in(&users.read).then_some(Level::Read)
    }
}

/// The tokens of the levels.
#[derive(Clone)]
pub(super) struct Tokens {
    operate: Token,
    read: Option<Token>,
}

impl Tokens {
    /// Reads the tokens from their files.
    pub(super) fn read(operate: &Path, read: Option<&Path>) -> Result<Self, FileError> {
        let tokens = Self { operate: Token::read(operate)?, read: read.map(Token::read).transpose()? };
        match (&tokens.read, read) {
            (Some(token), Some(path)) if token.0 == tokens.operate.0 => {
                Err(FileError { path: path.into(), problem: FileProblem::SameToken })
            }
            _ => Ok(tokens),
        }
    }

    /// Returns the level of the client that sent these headers.
    pub(super) fn level(&self, headers: &HeaderMap) -> Option<Level> {
        let operate = self.operate.is_in(headers);
        let read = self.read.as_ref().is_some_and(|token| token.is_in(headers));
        match (operate, read) {
            (true, _) => Some(Level::Operate),
            (false, true) => Some(Level::Read),
            (false, false) => None,
        }
    }
}

/// A token that clients present.
#[derive(Clone)]
struct Token(Vec<u8>);

impl Token {
    /// Reads a token from a file; ignores surrounding white space.
    fn read(path: &Path) -> Result<Self, FileError> {
        let text = read_secret(path, TOKEN_BYTES_MAX as u64 + 64)?;
        let token = text.trim_ascii();
        let fits = (TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len());
        if !fits || !token.iter().all(u8::is_ascii_graphic) {
            return Err(FileError { path: path.into(), problem: FileProblem::NotAToken });
        }
        Ok(Self(token.to_vec()))
    }

    /// Returns true if a request has the token.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(given), None) = (given.next(), given.next()) else { return false };
        let Some((scheme, token)) = given.as_bytes().split_at_checked(b"bearer ".len()) else { return false };
        scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(token.ct_eq(&self.0))
    }
}

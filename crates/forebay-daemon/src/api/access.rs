//! Who may speak to the API over TCP: whoever knows the token. The files that hold secrets are checked before they are
//! believed.
//!
//! Invariant: how long a comparison takes does not depend on how much of a token is right.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use axum::http::{HeaderMap, header};
use subtle::ConstantTimeEq;
use thiserror::Error;

/// Shortest token, in bytes.
pub const TOKEN_BYTES_MIN: usize = 32;
/// Longest token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 1024;
/// Largest file of a certificate or key, in bytes.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// Why a file of the API over TCP cannot be used.
#[derive(Debug, Error)]
#[error("{path}: {problem}", path = path.display())]
pub struct FileError {
    /// Which file.
    pub path: PathBuf,
    /// What is wrong with it, and what to do.
    pub problem: FileProblem,
}

/// What can be wrong with such a file.
#[derive(Debug, Error)]
pub enum FileProblem {
    /// The system says so.
    #[error("cannot be read: {0}")]
    System(#[from] io::Error),
    /// Others may read or change it.
    #[error(
        "everybody on this machine may use it (mode {mode:04o}): chmod o= it, and make a new secret if it was not so before"
    )]
    Open {
        /// Its permissions.
        mode: u32,
    },
    /// Far too much.
    #[error("larger than {0} bytes: this cannot be the right file")]
    TooLarge(u64),
    /// Too short, or not printable.
    #[error(
        "a token is {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} bytes of printable ASCII without spaces; make one with: head -c 32 /dev/urandom | base64"
    )]
    NotAToken,
    /// Not what TLS needs.
    #[error("{0}")]
    Tls(String),
}

/// The token that clients must know.
#[derive(Clone)]
pub(super) struct Token(Vec<u8>);

impl Token {
    /// Reads a token from a file; white space around it does not count.
    pub(super) fn read(path: &Path) -> Result<Self, FileError> {
        let text = read_secret(path, TOKEN_BYTES_MAX as u64 + 64)?;
        let token = text.trim_ascii();
        let fits = (TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len());
        if !fits || !token.iter().all(u8::is_ascii_graphic) {
            return Err(FileError { path: path.into(), problem: FileProblem::NotAToken });
        }
        Ok(Self(token.to_vec()))
    }

    /// Whether a request brings the token.
    pub(super) fn is_in(&self, headers: &HeaderMap) -> bool {
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(given), None) = (given.next(), given.next()) else { return false };
        let Some((scheme, token)) = given.as_bytes().split_at_checked(b"bearer ".len()) else { return false };
        scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(token.ct_eq(&self.0))
    }
}

/// Reads a file that only its owner and group may use.
pub(super) fn read_secret(path: &Path, bytes_max: u64) -> Result<Vec<u8>, FileError> {
    let read = || {
        let file = File::open(path)?;
        // Of the file that is open, not of one that takes its name meanwhile.
        let mode = file.metadata()?.mode() & 0o7777;
        if mode & 0o007 != 0 {
            return Err(FileProblem::Open { mode });
        }
        read_bounded(file, bytes_max)
    };
    read().map_err(|problem| FileError { path: path.into(), problem })
}

/// Reads a file that holds no secret.
pub(super) fn read_public(path: &Path) -> Result<Vec<u8>, FileError> {
    let read = || read_bounded(File::open(path)?, PEM_BYTES_MAX);
    read().map_err(|problem| FileError { path: path.into(), problem })
}

/// Reads the file of a private key.
pub(super) fn read_key(path: &Path) -> Result<Vec<u8>, FileError> {
    read_secret(path, PEM_BYTES_MAX)
}

fn read_bounded(file: File, bytes_max: u64) -> Result<Vec<u8>, FileProblem> {
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(FileProblem::TooLarge(bytes_max));
    }
    Ok(bytes)
}

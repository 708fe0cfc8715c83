//! Files that hold secrets or certificates: they are checked before they are used.
//!
//! Invariants
//! - A file with a secret that all users may access is refused.
//! - The content of such a file is in no error.
//! - Opening never waits: only regular files are read, and a FIFO does not block the caller.

use rustix::fs::OFlags;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Shortest token, in bytes.
pub const TOKEN_BYTES_MIN: usize = 32;
/// Longest token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 1024;
/// Largest file of a certificate or key, in bytes.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// Reason why a secret or certificate file cannot be used.
#[derive(Debug, Error)]
#[error("{path}: {problem}", path = path.display())]
pub struct FileError {
    /// Its path.
    pub path: PathBuf,
    /// The problem, and what to do.
    pub problem: FileProblem,
}

/// Problem with such a file.
#[derive(Debug, Error)]
pub enum FileProblem {
    /// An error of the operating system.
    #[error("cannot be read: {0}")]
    System(#[from] io::Error),
    /// A FIFO, a socket, a device or a directory.
    #[error("not a regular file")]
    NotAFile,
    /// Other users can read or change it.
    #[error(
        "all users of this machine have access to it (mode {mode:04o}): chmod o= it, and replace the secret \
         if it may have leaked"
    )]
    Open {
        /// Its permissions.
        mode: u32,
    },
    /// It is far too large.
    #[error("larger than {0} bytes: this cannot be the right file")]
    TooLarge(u64),
    /// Too short, or not printable.
    #[error(
        "a token is {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} bytes of printable ASCII without spaces; make one with: head -c 32 /dev/urandom | base64"
    )]
    NotAToken,
    /// The same token for both levels.
    #[error("the same token as the other one: read-only clients could make changes")]
    SameToken,
    /// It is not in the form that TLS needs.
    #[error("{0}")]
    Tls(String),
}

/// Reads a file that only its owner and group may use.
pub fn read_secret(path: &Path, bytes_max: u64) -> Result<Vec<u8>, FileError> {
    let read = || read_bounded(open_secret(path)?, bytes_max);
    read().map_err(|problem| FileError { path: path.into(), problem })
}

/// Opens a regular file, without waiting for the other end of a FIFO.
fn open_regular(path: &Path) -> Result<File, FileProblem> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    // Of the open file, not of one that takes its name meanwhile.
    if file.metadata()?.is_file() { Ok(file) } else { Err(FileProblem::NotAFile) }
}

/// Opens a file that only its owner and group may use.
pub(crate) fn open_secret(path: &Path) -> Result<File, FileProblem> {
    let file = open_regular(path)?;
    let mode = file.metadata()?.mode() & 0o7777;
    if mode & 0o007 != 0 { Err(FileProblem::Open { mode }) } else { Ok(file) }
}

/// Reads a file that holds no secret.
pub(crate) fn read_public(path: &Path) -> Result<Vec<u8>, FileError> {
    let read = || read_bounded(open_regular(path)?, PEM_BYTES_MAX);
    read().map_err(|problem| FileError { path: path.into(), problem })
}

/// Reads the file of a private key.
pub fn read_key(path: &Path) -> Result<Vec<u8>, FileError> {
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

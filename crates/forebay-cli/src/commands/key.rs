//! `--key-file`, of the commands that read a cache without a daemon.

use std::path::PathBuf;

use forebay_daemon::encryption::Key;

use crate::cache::space::refused;
use crate::failure::Failure;

/// The key of an encrypted cache.
#[derive(Debug, clap::Args)]
pub(crate) struct KeyOption {
    /// Key of an encrypted cache: the file that encryption_key_file of its pool names
    #[arg(long, value_name = "PATH")]
    key_file: Option<PathBuf>,
}

impl KeyOption {
    /// Reads the key, if one was named.
    pub(super) fn read(&self) -> Result<Option<Key>, Failure> {
        self.key_file.as_deref().map(Key::from_file).transpose().map_err(refused)
    }
}

//! `--key-file` of the commands that read a cache without a daemon.

use std::path::PathBuf;

use forebay_offline::Key;
use forebay_pool::encryption::read_key_file;

use crate::failure::Failure;

/// The key of an encrypted cache.
#[derive(Debug, clap::Args)]
pub(crate) struct KeyOption {
    /// Key of an encrypted cache: the file that encryption_key_file of its pool names
    #[arg(long, value_name = "PATH")]
    key_file: Option<PathBuf>,
}

impl KeyOption {
    /// Reads the key, if one was given.
    pub(super) fn read(&self) -> Result<Option<Key>, Failure> {
        Ok(self.key_file.as_deref().map(read_key_file).transpose()?)
    }
}

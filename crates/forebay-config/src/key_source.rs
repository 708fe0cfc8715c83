//! The place of an encrypted pool's key: a file, or a credential of the service manager.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Prefix of a credential.
const CREDENTIAL: &str = "credential:";

/// Place of a pool's key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeySource {
    /// A file.
    File(PathBuf),
    /// A credential of this name, which the service manager has put into `$CREDENTIALS_DIRECTORY`.
    Credential(String),
}

impl FromStr for KeySource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(name) = text.strip_prefix(CREDENTIAL) {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
            let good = !name.is_empty() && !name.starts_with('.') && name.bytes().all(plain);
            return if good {
                Ok(Self::Credential(name.to_owned()))
            } else {
                Err(format!("\"{name}\" is not a name of a credential: letters, digits, `.`, `_` and `-`"))
            };
        }
        if !text.starts_with('/') || text.chars().any(char::is_control) {
            return Err(format!("\"{text}\" is neither a whole path (/...) nor {CREDENTIAL}NAME, nor off"));
        }
        Ok(Self::File(text.into()))
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Credential(name) => write!(f, "{CREDENTIAL}{name}"),
        }
    }
}

//! The name of a client in its certificate, as in an allow list. The whole name is compared: there
//! are no patterns.
//!
//! Invariants
//! - Names of different kinds never match each other.

use std::fmt;
use std::str::FromStr;

/// A name in a certificate, with its kind.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum ClientName {
    /// The common name of the subject.
    Common(String),
    /// A DNS alternative name, in lower case.
    Dns(String),
    /// A URI alternative name.
    Uri(String),
}

impl FromStr for ClientName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || {
            format!(
                "\"{}\" is not a name of a client; it is one of cn:NAME (common name), dns:NAME, uri:URI",
                text.escape_debug()
            )
        };
        let (kind, name) = text.split_once(':').ok_or_else(form)?;
        if name.is_empty() || name.chars().any(char::is_control) {
            return Err(form());
        }
        match kind {
            "cn" => Ok(Self::Common(name.to_owned())),
            "dns" | "uri" if name.contains('*') => {
                Err(format!("\"{text}\" has a `*`: names are compared as a whole, list each of them"))
            }
            "dns" => Ok(Self::Dns(name.to_ascii_lowercase())),
            "uri" => Ok(Self::Uri(name.to_owned())),
            _ => Err(form()),
        }
    }
}

impl fmt::Display for ClientName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, name) = match self {
            Self::Common(name) => ("cn", name),
            Self::Dns(name) => ("dns", name),
            Self::Uri(name) => ("uri", name),
        };
        write!(f, "{kind}:{}", name.escape_debug())
    }
}

//! Names that a certificate gives to its holder.
//!
//! A name is believed because the authority that the operator chose has signed it; the certificate was verified before it is
//! looked at here. What is compared is the whole name: there are no patterns, so nobody gets in by choosing a name well.
//!
//! Invariants
//! - A certificate with more than one common name has none: which of them the authority meant nobody can tell.
//! - Names of different kinds never match each other.

use std::fmt;
use std::str::FromStr;

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Most names of one certificate that are looked at.
const NAMES_MAX: usize = 256;

/// A name in a certificate, of the kind that it has there.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum ClientName {
    /// The common name of the subject.
    Common(String),
    /// An alternative name that is one of DNS, in small letters.
    Dns(String),
    /// An alternative name that is a URI.
    Uri(String),
}

impl FromStr for ClientName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || {
            format!(
                "\"{}\" is no name of a client; it is one of cn:NAME (common name), dns:NAME, uri:URI",
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

/// The names in a certificate (DER); none if it cannot be understood.
pub(super) fn of_certificate(der: &[u8]) -> Vec<ClientName> {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else { return Vec::new() };
    let mut names = Vec::new();
    let mut common = certificate.subject().iter_common_name();
    if let (Some(name), None) = (common.next(), common.next())
        && let Ok(name) = name.as_str()
    {
        names.push(ClientName::Common(name.to_owned()));
    }
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let alternative = alternative.iter().flat_map(|extension| &extension.value.general_names);
    names.extend(alternative.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(ClientName::Dns(name.to_ascii_lowercase())),
        GeneralName::URI(uri) => Some(ClientName::Uri((*uri).to_owned())),
        _ => None,
    }));
    names.truncate(NAMES_MAX);
    names
}

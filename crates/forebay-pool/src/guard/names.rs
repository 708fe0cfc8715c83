//! Names that a certificate gives to its holder.
//!
//! A name is trusted because the authority that the operator chose has signed it. The certificate
//! was verified before.
//!
//! Invariants
//! - A certificate with more than one common name has none: which of them the authority meant is
//!   unknown.

use forebay_config::ClientName;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Maximum number of names of one certificate that are read.
const NAMES_MAX: usize = 256;

/// The names in a certificate (DER); none if it cannot be parsed.
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

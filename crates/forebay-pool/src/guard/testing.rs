//! Certificates for tests, created at run time.

use forebay_config::choices::ClientCertificates;
use forebay_config::{TlsConfig, TlsFiles};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, SanType};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};

/// A signing authority.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
    pub(crate) der: CertificateDer<'static>,
}

/// A certificate and its key.
pub(crate) struct Certified {
    pub(crate) pem: String,
    pub(crate) der: CertificateDer<'static>,
    pub(crate) key_pem: String,
    pub(crate) key: PrivateKeyDer<'static>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = subject(&["test authority"]);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { pem: certificate.pem(), der: certificate.der().clone(), issuer: Issuer::new(params, key) }
    }

    /// A certificate with these common names, DNS names and URIs.
    pub(crate) fn sign(&self, common: &[&str], dns: &[&str], uris: &[&str]) -> Certified {
        let names: Vec<String> = dns.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = subject(common);
        params
            .subject_alt_names
            .extend(uris.iter().map(|uri| SanType::URI((*uri).to_owned().try_into().unwrap())));
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Certified {
            pem: certificate.pem(),
            der: certificate.der().clone(),
            key_pem: key.serialize_pem(),
            key: PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        }
    }
}

fn subject(common: &[&str]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    // The library keeps one value for each type: further ones are added as if of another type.
    for (at, common) in common.iter().enumerate() {
        let kind = if at == 0 { DnType::CommonName } else { DnType::CustomDnType(vec![2, 5, 4, 3]) };
        name.push(kind, *common);
    }
    name
}

/// Writes a file with permissions.
pub(crate) fn write(path: &Path, text: &str, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A section whose files are in this directory.
pub(crate) fn section(folder: &Path, server: &Certified, authority: Option<&Authority>) -> TlsConfig {
    let file = |name: &str| -> PathBuf { folder.join(name) };
    write(&file("cert.pem"), &server.pem, 0o644);
    write(&file("key.pem"), &server.key_pem, 0o600);
    if let Some(authority) = authority {
        write(&file("ca.pem"), &authority.pem, 0o644);
    }
    TlsConfig {
        files: TlsFiles { cert_file: file("cert.pem"), key_file: file("key.pem") },
        client_ca_file: authority.map(|_| file("ca.pem")),
        client_certificates: ClientCertificates::Required,
    }
}

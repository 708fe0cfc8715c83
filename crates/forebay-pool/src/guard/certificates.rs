//! Certificates and private keys from files, and the cryptography of all TLS of the daemon.

use crate::secret_file::{FileError, FileProblem, read_key, read_public};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;
use std::sync::Arc;

/// The cryptography provider of all TLS.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// An error of rustls about a file.
pub fn wrong(path: &Path, problem: impl Into<String>) -> FileError {
    FileError { path: path.into(), problem: FileProblem::Tls(problem.into()) }
}

/// All certificates of a file, at least one.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let text = read_public(path)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.map_err(|error| wrong(path, format!("no valid PEM certificate: {error}")))?;
    if chain.is_empty() {
        let problem = "it has no certificate; it must be PEM, with the server's own certificate first";
        return Err(wrong(path, problem));
    }
    Ok(chain)
}

/// The private key of a file that only owner and group may use. The error leaves out the parser's
/// message, which can quote a line of the key.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    PrivateKeyDer::from_pem_slice(&read_key(path)?)
        .map_err(|_| wrong(path, "no PEM private key, or a damaged one"))
}

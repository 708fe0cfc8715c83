//! TLS of the API over TCP, and what all TLS of the daemon needs: certificates and keys from files.

use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use super::TlsFiles;
use super::access::{FileError, FileProblem, read_key, read_public};

/// The cryptography of all TLS.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn wrong(path: &Path, problem: String) -> FileError {
    FileError { path: path.into(), problem: FileProblem::Tls(problem) }
}

/// All certificates of a file, at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let text = read_public(path)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.map_err(|error| wrong(path, format!("no certificate in PEM: {error}")))?;
    if chain.is_empty() {
        let problem = "there is no certificate in it; it must be PEM, the server's own first";
        return Err(wrong(path, problem.into()));
    }
    Ok(chain)
}

/// The private key of a file that only owner and group may use. What is wrong with its text is not told: the parser's
/// error may quote a line of it.
pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    PrivateKeyDer::from_pem_slice(&read_key(path)?)
        .map_err(|_| wrong(path, "no private key in PEM, or a damaged one".into()))
}

/// Takes connections with the certificate and key of these files.
pub(super) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, FileError> {
    let chain = certificates(&files.cert_file)?;
    let key = private_key(&files.key_file)?;
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
    let mut config = config.map_err(|error| {
        wrong(&files.key_file, format!("does not go with {}: {error}", files.cert_file.display()))
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

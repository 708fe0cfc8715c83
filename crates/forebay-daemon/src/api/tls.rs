//! TLS of the API over TCP: certificate and key from files.

use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::TlsFiles;
use super::access::{FileError, FileProblem, read_key, read_public};

/// Takes connections with the certificate and key of these files.
pub(super) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, FileError> {
    let cert_error =
        |problem: String| FileError { path: files.cert_file.clone(), problem: FileProblem::Tls(problem) };
    let key_error =
        |problem: String| FileError { path: files.key_file.clone(), problem: FileProblem::Tls(problem) };

    let text = read_public(&files.cert_file)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.map_err(|error| cert_error(format!("no certificate in PEM: {error}")))?;
    if chain.is_empty() {
        return Err(cert_error(
            "there is no certificate in it; it must be PEM, the server's own first".into(),
        ));
    }
    let key = PrivateKeyDer::from_pem_slice(&read_key(&files.key_file)?)
        .map_err(|error| key_error(format!("no private key in PEM: {error}")))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
    let mut config = config
        .map_err(|error| key_error(format!("does not go with {}: {error}", files.cert_file.display())))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

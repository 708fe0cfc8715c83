//! TLS of the API over TCP.

use std::sync::Arc;

use rustls::ServerConfig;
use tokio_rustls::TlsAcceptor;

use super::TlsFiles;
use forebay_pool::guard::certificates::{certificates, private_key, provider, wrong};
use forebay_pool::secret_file::FileError;

/// Returns an acceptor with the certificate and key of these files.
pub(super) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, FileError> {
    let chain = certificates(&files.cert_file)?;
    let key = private_key(&files.key_file)?;
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
    let mut config = config.map_err(|error| {
        wrong(&files.key_file, format!("does not match {}: {error}", files.cert_file.display()))
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

//! `[tls.NAME]`: certificates and a key from files, as rustls takes them.
//!
//! Sessions are not resumed: NBD connections live long, and without stored sessions none can
//! outlive a change of the authority.

use super::certificates::{certificates, private_key, provider, wrong};
use crate::secret_file::FileError;
use forebay_config::TlsConfig;
use forebay_config::choices::ClientCertificates;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// A configuration in use, and its sources.
#[derive(Default)]
struct Loaded {
    config: Option<Arc<ServerConfig>>,
    /// Certificates as last read, to detect whether a reload found others: the chain, then the
    /// authority.
    seen: Option<(TlsConfig, Vec<Vec<u8>>)>,
    problem: String,
}

/// The newest readable certificates of a section.
#[derive(Default)]
pub struct TlsEntry(Mutex<Loaded>);

impl fmt::Debug for TlsEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsEntry").finish_non_exhaustive() // it holds a key
    }
}

impl TlsEntry {
    /// The configuration for new connections; `None` if it could never be read.
    pub(crate) fn current(&self) -> Option<Arc<ServerConfig>> {
        self.lock().config.clone()
    }

    pub(super) fn problem(&self) -> String {
        self.lock().problem.clone()
    }

    /// Reads the files again; true if their certificates have changed. (A new key alone would not
    /// match the certificate.)
    pub(super) fn load(&self, wanted: &TlsConfig) -> Result<bool, String> {
        let read = server_config(wanted);
        let mut loaded = self.lock();
        match read {
            Ok((config, certificates)) => {
                let seen = Some((wanted.clone(), certificates));
                let differs = loaded.seen != seen;
                *loaded = Loaded { config: Some(Arc::new(config)), seen, problem: String::new() };
                Ok(differs)
            }
            Err(error) => {
                loaded.problem = error.to_string();
                Err(loaded.problem.clone())
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Loaded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The configuration, and all certificates in it.
fn server_config(wanted: &TlsConfig) -> Result<(ServerConfig, Vec<Vec<u8>>), FileError> {
    let files = &wanted.files;
    let chain = certificates(&files.cert_file)?;
    let mut seen: Vec<Vec<u8>> = chain.iter().map(|certificate| certificate.to_vec()).collect();
    let key = private_key(&files.key_file)?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&files.key_file, error.to_string()))?;
    let builder = match &wanted.client_ca_file {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                seen.push(certificate.to_vec());
                roots
                    .add(certificate)
                    .map_err(|error| wrong(path, format!("not a valid certificate authority: {error}")))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
            let verifier = match wanted.client_certificates {
                ClientCertificates::Required => verifier,
                ClientCertificates::Optional => verifier.allow_unauthenticated(),
            };
            builder
                .with_client_cert_verifier(verifier.build().map_err(|error| wrong(path, error.to_string()))?)
        }
    };
    let config = builder.with_single_cert(chain, key);
    let mut config = config.map_err(|error| {
        wrong(&files.key_file, format!("does not match {}: {error}", files.cert_file.display()))
    })?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok((config, seen))
}

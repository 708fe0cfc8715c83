//! The admin API over real sockets, with a fake daemon: every route, every form of error, token,
//! TLS, limits.
#![allow(clippy::unwrap_used, reason = "tests and what they share")]

#[allow(unreachable_pub, reason = "shared with an example")]
mod client;
#[allow(unreachable_pub, reason = "shared with an example")]
mod fake;
mod levels;
mod limits;
mod openapi;
mod routes;
mod tcp;
mod ui;

use forebay_daemon::api::{ApiOptions, ApiServer, TcpOptions, serve};
use std::path::PathBuf;
use std::sync::Arc;

/// A server on a private socket.
struct Stage {
    fake: Arc<fake::Fake>,
    server: ApiServer,
    socket: PathBuf,
    folder: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        Self::with(|_| {})
    }

    /// Starts a server with one pool and one volume, and options changed by `change`.
    fn with(change: impl FnOnce(&mut ApiOptions)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fake = fake::Fake::new();
        fake.furnish().unwrap();
        let mut options = options(&folder);
        change(&mut options);
        let socket = options.socket.clone();
        let server = serve(&options, fake.services()).unwrap();
        Self { fake, server, socket, folder }
    }

    fn call(&self, method: &str, path: &str, body: &str) -> client::Answer {
        client::call(&self.socket, method, path, body)
    }
}

fn options(folder: &tempfile::TempDir) -> ApiOptions {
    ApiOptions::at(folder.path().join("admin.sock"))
}

/// Returns options for TCP on a free port of loopback with this token in a file of mode `mode`.
fn tcp_options(folder: &std::path::Path, token: &str, mode: u32) -> TcpOptions {
    let token_file = folder.join("token");
    std::fs::write(&token_file, token).unwrap();
    set_mode(&token_file, mode);
    let host = "127.0.0.1".into();
    TcpOptions { host, port: 0, token_file, read_token_file: None, tls: None }
}

fn set_mode(path: &std::path::Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

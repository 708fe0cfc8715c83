//! TCP: token, plaintext on loopback only, TLS.

use super::*;
use client::{Answer, exchange, request};
use forebay_daemon::api::{ApiError, TlsFiles};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, crypto::ring};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn connect(stage: &Stage) -> TcpStream {
    let stream = TcpStream::connect(stage.server.tcp_address().unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Sends one request with these additional header lines.
fn call(stage: &Stage, path: &str, headers: &str) -> Answer {
    let text =
        request("GET", path, "").replace("Host: localhost\r\n", &format!("Host: localhost\r\n{headers}"));
    exchange(&mut connect(stage), text.as_bytes())
}

fn with_tcp(change: impl FnOnce(&mut TcpOptions)) -> Stage {
    Stage::with(|options| {
        let folder = options.socket.parent().unwrap();
        let mut tcp = tcp_options(folder, &format!("{TOKEN}\n"), 0o600);
        change(&mut tcp);
        options.tcp = Some(tcp);
    })
}

#[test]
fn requests_without_token_are_refused() {
    let stage = with_tcp(|_| {});
    let right = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(call(&stage, "/v1/daemon", &right).status, 200);
    assert_eq!(call(&stage, "/v1/daemon", &right.replace("Bearer", "bearer")).status, 200);
    assert_eq!(call(&stage, "/v1/nothing", &right).status, 404);
    let longer = format!("Authorization: Bearer {TOKEN}0\r\n");
    let twice = format!("{right}{right}");
    for wrong in
        ["", "Authorization: Bearer \r\n", "Authorization: Basic eDp4\r\n", &longer, &longer[..40], &twice]
    {
        let wrong =
            if wrong.is_empty() || wrong.ends_with('\n') { wrong.to_owned() } else { format!("{wrong}\r\n") };
        for path in ["/v1/daemon", "/v1/nothing", "/metrics", "/v1/openapi.json"] {
            let answer = call(&stage, path, &wrong);
            answer.problem(401, "denied");
            assert_eq!(answer.header("www-authenticate"), "Bearer");
        }
    }
    assert_eq!(stage.call("GET", "/v1/daemon", "").status, 200, "the unix socket asks for no token");
}

#[test]
fn token_works_despite_open_strangers() {
    let stage = Stage::with(|options| {
        let folder = options.socket.parent().unwrap();
        options.tcp = Some(tcp_options(folder, &format!("{TOKEN}\n"), 0o600));
        options.limits.connections_max = 3;
    });
    let right = format!("Authorization: Bearer {TOKEN}\r\n");
    let ask = format!("GET /v1/daemon HTTP/1.1\r\nHost: localhost\r\n{right}\r\n");
    let mut known: Vec<TcpStream> = (0..2).map(|_| asked(&stage, &ask)).collect();
    let strangers: Vec<TcpStream> = (0..5).map(|_| connect(&stage)).collect();
    known.push(asked(&stage, &ask));
    // Authenticated clients have all places: no connection is closed.
    call(&stage, "/v1/daemon", &right).problem(503, "unavailable");
    for stream in &mut known {
        assert_eq!(status_of(stream, &ask), 200);
    }
    drop(strangers);
}

/// Returns a connection on which one request was answered, and which stays open.
fn asked(stage: &Stage, request: &str) -> TcpStream {
    let mut stream = connect(stage);
    assert_eq!(status_of(&mut stream, request), 200);
    stream
}

/// Sends a request on a connection that stays open.
fn status_of(stream: &mut TcpStream, request: &str) -> u16 {
    stream.write_all(request.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap();
    stream.read_exact(&mut vec![0; length.parse().unwrap()]).unwrap();
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

fn refused(tcp: TcpOptions) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(&folder);
    options.tcp = Some(tcp);
    let error: ApiError = serve(&options, fake::Fake::new().services()).unwrap_err();
    assert!(!options.socket.exists(), "something was served all the same");
    error.to_string()
}

#[test]
fn remote_plaintext_and_bad_token_fail() {
    let folder = tempfile::tempdir().unwrap();
    let tcp = |token: &str, mode| tcp_options(folder.path(), token, mode);
    for host in ["0.0.0.0", "::", "192.0.2.1"] {
        let error = refused(TcpOptions { host: host.into(), ..tcp(TOKEN, 0o600) });
        assert!(error.contains("is not loopback") && error.contains("cert_file"), "{error}");
    }
    assert!(refused(tcp(TOKEN, 0o644)).contains("mode 0644"));
    assert!(refused(tcp(&TOKEN[1..], 0o600)).contains("32 to 1024 bytes"));
    assert!(refused(tcp(&TOKEN.replace('8', " "), 0o600)).contains("without spaces"));
    assert!(refused(tcp(&"x".repeat(5000), 0o600)).contains("larger than"));
    let missing = TcpOptions { token_file: folder.path().join("no"), ..tcp(TOKEN, 0o600) };
    assert!(refused(missing).contains("cannot be read"));
}

/// Returns a certificate for `localhost` and its key, in files.
fn certificate(folder: &std::path::Path) -> (TlsFiles, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let files = TlsFiles { cert_file: folder.join("cert.pem"), key_file: folder.join("key.pem") };
    std::fs::write(&files.cert_file, made.cert.pem()).unwrap();
    std::fs::write(&files.key_file, made.signing_key.serialize_pem()).unwrap();
    set_mode(&files.key_file, 0o600);
    (files, made.cert.der().clone())
}

#[test]
fn tls_serves_and_plaintext_gets_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (files, der) = certificate(folder.path());
    let stage = with_tcp(|tcp| (tcp.host, tcp.tls) = ("0.0.0.0".into(), Some(files.clone())));
    let port = stage.server.tcp_address().unwrap().port();

    let mut roots = RootCertStore::empty();
    roots.add(der).unwrap();
    let config = ClientConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let call = |headers: &str| {
        let connection =
            ClientConnection::new(config.clone().into(), "localhost".try_into().unwrap()).unwrap();
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let text = request("GET", "/v1/daemon", "")
            .replace("Host: localhost\r\n", &format!("Host: localhost\r\n{headers}"));
        exchange(&mut StreamOwned::new(connection, stream), text.as_bytes())
    };
    assert_eq!(call(&format!("Authorization: Bearer {TOKEN}\r\n")).status, 200);
    call("").problem(401, "denied");

    use std::io::{Read, Write};
    let mut plain = TcpStream::connect(("127.0.0.1", port)).unwrap();
    plain.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    plain.write_all(request("GET", "/v1/daemon", "").as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "answered in plaintext");
    drop(stage.folder);

    let tcp = |tls: TlsFiles| TcpOptions { tls: Some(tls), ..tcp_options(folder.path(), TOKEN, 0o600) };
    let swapped = TlsFiles { cert_file: files.key_file.clone(), key_file: files.key_file.clone() };
    assert!(refused(tcp(swapped)).contains("no certificate"));
    let other = certificate(tempfile::tempdir_in(folder.path()).unwrap().keep().as_path()).0;
    let mixed = TlsFiles { cert_file: files.cert_file.clone(), key_file: other.key_file };
    let text = refused(tcp(mixed));
    assert!(text.contains("does not match"), "{text}");
    set_mode(&files.key_file, 0o644);
    assert!(refused(tcp(files)).contains("mode 0644"));
}

//! One GET over a unix socket. HTTP/1.0, so that the answer ends where the connection ends.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::failure::Failure;

/// Longest wait for any part of the answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer believed.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// The body of the answer, if it was a success.
pub(super) fn get(socket: &Path, path: &str) -> Result<String, Failure> {
    let shown = socket.display();
    let mut stream = UnixStream::connect(socket).map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::NotFound => "start the volume with --admin SOCKET, and give that path here",
            ErrorKind::ConnectionRefused => "the daemon that made this socket has ended",
            ErrorKind::PermissionDenied => "only owner and group of the socket may ask",
            _ => "it must be the socket given to `forebay run --admin`",
        };
        Failure::new(format!("{shown}: {error}")).hint(hint)
    })?;
    let answer = exchange(&mut stream, path).map_err(|error| {
        Failure::new(format!("{shown}: no answer: {error}")).hint("is this the admin socket?")
    })?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    match head.split(' ').nth(1) {
        Some("200") if head.starts_with("HTTP/") => Ok(body.to_owned()),
        Some(status) if head.starts_with("HTTP/") => {
            let what = crate::screen::harmless(body.trim());
            Err(Failure::new(format!("{shown}: the daemon answered {status} to {path}: {what}")))
        }
        _ => Err(Failure::new(format!("{shown}: what answers there does not speak HTTP"))
            .hint("give the socket of --admin, not the one of --export")),
    }
}

fn exchange(stream: &mut UnixStream, path: &str) -> std::io::Result<String> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: forebay\r\nAccept: */*\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut part = [0; 16 << 10];
    while (answer.len() as u64) < ANSWER_BYTES_MAX {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(read) => answer.extend_from_slice(&part[..read]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // Whoever speaks first and then waits is no HTTP server: look at what it said.
            Err(error) if error.kind() == ErrorKind::WouldBlock && !answer.is_empty() => break,
            Err(error) => return Err(error),
        }
        if !answer.starts_with(&b"HTTP/"[..answer.len().min(5)]) {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

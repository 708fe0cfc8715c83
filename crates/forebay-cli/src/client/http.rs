//! One HTTP request over a Unix socket, and its response.
//!
//! The request is HTTP/1.0: the response then ends where the connection ends, without chunks, and a
//! stream of events is plain bytes. Blocking, with a bound on everything.
//!
//! Invariants
//! - Nothing waits forever: connecting and sending have [`CONNECT_WITHIN`], and the response has
//!   the time limit of the caller. If the caller watches for Ctrl-C, it is noticed within
//!   [`GLANCE`].
//! - A request is sent again only if the daemon has read nothing of it.
//! - A truncated response is an error, never a partial response: its length is compared with its
//!   head.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

/// Longest wait for a daemon to accept a connection, and to take a request.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Longest time that a read may ignore Ctrl-C.
const GLANCE: Duration = Duration::from_millis(100);
/// Longest head of a response, in bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Maximum number of header lines.
const HEADERS_MAX: usize = 64;
/// Longest accepted response, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct HttpRequest<'a> {
    /// `GET`, `POST`, `PATCH` or `DELETE`.
    pub(crate) method: &'static str,
    /// Path and query, escaped.
    pub(crate) path: &'a str,
    /// JSON text.
    pub(crate) body: Option<String>,
    /// Further header lines.
    pub(crate) headers: Vec<(&'static str, String)>,
}

/// Head of a response; the body follows.
#[derive(Debug)]
pub(crate) struct Answer {
    /// HTTP status code.
    pub(crate) status: u16,
    length: Option<usize>,
    /// Location of the created resource.
    pub(crate) location: Option<String>,
    stream: UnixStream,
    /// Bytes of the body received together with the head.
    early: Vec<u8>,
}

/// Result of waiting for bytes.
#[derive(Debug)]
pub(crate) enum Bytes {
    /// Some bytes.
    Some(Vec<u8>),
    /// The peer has closed the connection.
    End,
    /// The time limit expired, or Ctrl-C was pressed; the connection is unchanged.
    Nothing,
}

/// Reason for a missing response.
#[derive(Debug)]
pub(crate) enum Error {
    /// The connection failed.
    Connect(io::Error),
    /// It broke, or timed out.
    Io(io::Error),
    /// The peer does not speak HTTP.
    NotHttp,
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Sends a request, and waits at most `timeout` for the head of the response.
pub(crate) fn ask(
    socket: &Path,
    request: &HttpRequest<'_>,
    timeout: Duration,
    stop: &dyn Fn() -> bool,
) -> Result<Answer, Error> {
    let until = Instant::now() + CONNECT_WITHIN;
    loop {
        match ask_once(socket, request, timeout, stop) {
            Err(Error::Io(error)) if is_unread(&error) && Instant::now() < until && !stop() => {
                std::thread::sleep(GLANCE);
            }
            answer => return answer,
        }
    }
}

fn ask_once(
    socket: &Path,
    request: &HttpRequest<'_>,
    timeout: Duration,
    stop: &dyn Fn() -> bool,
) -> Result<Answer, Error> {
    let mut stream = connect(socket).map_err(Error::Connect)?;
    stream.set_write_timeout(Some(CONNECT_WITHIN))?;
    // A server that responds before it has read everything closes early; use its response instead
    // of the broken pipe.
    let sent = stream.write_all(&head_and_body(request));
    match read_head(stream, Instant::now() + timeout, stop) {
        Err(Error::Io(_)) if sent.is_err() => Err(Error::Io(sent.err().unwrap_or(ErrorKind::Other.into()))),
        answer => answer,
    }
}

/// Returns true if the daemon closed the connection without reading the request, as it does when it
/// hands over to its successor: a Unix socket reports unread data as a reset. The request can be
/// repeated.
fn is_unread(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

/// `UnixStream::connect` with a time limit: it waits while the backlog of the listener is full.
fn connect(socket: &Path) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(socket)?;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&fd, sockopt::Timeout::Send, Some(CONNECT_WITHIN))?;
    let until = Instant::now() + CONNECT_WITHIN;
    loop {
        match rustix::net::connect(&fd, &address) {
            Ok(()) => return Ok(UnixStream::from(fd)),
            // A signal interrupts a call that has a time limit, even with `SA_RESTART`.
            Err(rustix::io::Errno::INTR) if Instant::now() < until => {}
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                let what = format!("does not accept connections within {} s", CONNECT_WITHIN.as_secs());
                return Err(io::Error::new(ErrorKind::TimedOut, what));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn head_and_body(request: &HttpRequest<'_>) -> Vec<u8> {
    let HttpRequest { method, path, body, headers } = request;
    let mut text = format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\nAccept: */*\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    if let Some(body) = body {
        text += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    } else if *method == "GET" || *method == "DELETE" {
        text += "\r\n";
    } else {
        text += "Content-Length: 0\r\n\r\n";
    }
    text.into_bytes()
}

fn read_head(stream: UnixStream, until: Instant, stop: &dyn Fn() -> bool) -> Result<Answer, Error> {
    let mut answer = Answer { status: 0, length: None, location: None, stream, early: Vec::new() };
    let mut bytes = Vec::new();
    loop {
        match answer.read(until, stop)? {
            Bytes::Some(more) => bytes.extend(more),
            Bytes::End if bytes.is_empty() => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
            Bytes::End => return Err(Error::NotHttp),
            // A peer that sends first and then waits is no HTTP server: check the bytes.
            Bytes::Nothing if !bytes.is_empty() => return Err(Error::NotHttp),
            Bytes::Nothing if stop() => return Err(io::Error::from(ErrorKind::Interrupted).into()),
            Bytes::Nothing => return Err(io::Error::from(ErrorKind::TimedOut).into()),
        }
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut head = httparse::Response::new(&mut headers);
        match head.parse(&bytes) {
            Ok(httparse::Status::Complete(end)) => {
                let length = head.headers.iter().find(|h| h.name.eq_ignore_ascii_case("content-length"));
                answer.length = length.and_then(|h| std::str::from_utf8(h.value).ok()?.trim().parse().ok());
                let location = head.headers.iter().find(|h| h.name.eq_ignore_ascii_case("location"));
                answer.location = location.and_then(|h| std::str::from_utf8(h.value).ok().map(str::to_owned));
                answer.status = head.code.ok_or(Error::NotHttp)?;
                answer.early = bytes.split_off(end);
                return Ok(answer);
            }
            Ok(httparse::Status::Partial) if bytes.len() < HEAD_BYTES_MAX => {}
            _ => return Err(Error::NotHttp),
        }
    }
}

impl Answer {
    /// Returns the next bytes of the body, waiting until `until`.
    pub(crate) fn read(&mut self, until: Instant, stop: &dyn Fn() -> bool) -> io::Result<Bytes> {
        if !self.early.is_empty() {
            return Ok(Bytes::Some(std::mem::take(&mut self.early)));
        }
        let mut part = vec![0; 16 << 10];
        while !stop() {
            let left = until.saturating_duration_since(Instant::now()).min(GLANCE);
            if left.is_zero() {
                break;
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut part) {
                Ok(0) => return Ok(Bytes::End),
                Ok(read) => {
                    part.truncate(read);
                    return Ok(Bytes::Some(part));
                }
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Bytes::Nothing)
    }

    /// Returns the whole body as text.
    pub(crate) fn text(mut self, until: Instant, stop: &dyn Fn() -> bool) -> Result<String, Error> {
        let mut body = Vec::new();
        loop {
            if self.length.is_some_and(|length| body.len() >= length) {
                break;
            }
            match self.read(until, stop)? {
                Bytes::Some(more) => body.extend(more),
                Bytes::End if self.length.is_some() => {
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, "the answer was cut off").into());
                }
                Bytes::End => break,
                Bytes::Nothing if stop() => return Err(io::Error::from(ErrorKind::Interrupted).into()),
                Bytes::Nothing => return Err(io::Error::from(ErrorKind::TimedOut).into()),
            }
            if body.len() > ANSWER_BYTES_MAX {
                return Err(io::Error::other("the answer is too long").into());
            }
        }
        Ok(String::from_utf8_lossy(&body).into_owned())
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Escapes a name as part of a path or query.
pub(crate) fn escaped(part: &str) -> String {
    let mut text = String::with_capacity(part.len());
    for byte in part.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text += &format!("%{byte:02X}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// Returns the result for a server that sends `said` and then closes.
    fn answer_to(said: &'static [u8]) -> Result<(u16, String), Error> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            stream.write_all(said).unwrap();
        });
        let request = HttpRequest { method: "GET", path: "/", body: None, headers: vec![] };
        let until = Instant::now() + Duration::from_secs(5);
        let answer = ask(&socket, &request, Duration::from_secs(5), &|| false);
        let answer = answer.and_then(|answer| Ok((answer.status, answer.text(until, &|| false)?)));
        server.join().unwrap();
        answer
    }

    #[test]
    fn responses_end_by_length_or_close() {
        let ok = |said| answer_to(said).unwrap();
        assert_eq!(ok(b"HTTP/1.1 200 OK\r\n\r\nyes"), (200, "yes".into()));
        assert_eq!(ok(b"HTTP/1.0 404 Not Found\r\ncontent-length: 2\r\n\r\nno..."), (404, "no...".into()));
        assert_eq!(ok(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"), (204, String::new()));
    }

    #[test]
    fn half_an_answer_is_none() {
        assert!(matches!(answer_to(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhal"), Err(Error::Io(_))));
        assert!(matches!(answer_to(b"HTTP/1.1 200 OK\r\nConte"), Err(Error::NotHttp)));
        assert!(matches!(answer_to(b"NBDMAGIC"), Err(Error::NotHttp)));
        assert!(matches!(answer_to(b""), Err(Error::Io(_))));
    }

    #[test]
    fn an_unread_request_is_sent_again() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let (unread, _) = listener.accept().unwrap();
            // Wait until the request is in its queue.
            while rustix::io::ioctl_fionread(&unread).unwrap() == 0 {
                std::thread::yield_now();
            }
            drop(unread);
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        });
        let request = HttpRequest { method: "POST", path: "/", body: None, headers: vec![] };
        let answer = ask(&socket, &request, Duration::from_secs(5), &|| false);
        assert_eq!(answer.unwrap().status, 200);
        server.join().unwrap();
    }

    #[test]
    fn silence_ends_by_timeout_or_interrupt() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let _listener = UnixListener::bind(&socket).unwrap();
        let request = HttpRequest { method: "GET", path: "/", body: None, headers: vec![] };
        let timed = |timeout, stop: bool| {
            let Err(Error::Io(error)) = ask(&socket, &request, timeout, &|| stop) else { panic!("answered") };
            error.kind()
        };
        assert_eq!(timed(Duration::from_millis(50), false), ErrorKind::TimedOut);
        assert_eq!(timed(Duration::from_secs(600), true), ErrorKind::Interrupted);
    }

    #[test]
    fn connecting_to_a_full_backlog_times_out() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let fd = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&fd, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
        rustix::net::listen(&fd, 0).unwrap();
        let _first = connect(&socket).unwrap();
        assert_eq!(connect(&socket).unwrap_err().kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(escaped("a b/ä?"), "a%20b%2F%C3%A4%3F");
    }
}

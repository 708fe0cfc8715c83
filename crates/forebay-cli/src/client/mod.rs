//! The client of the admin API that all commands share.
//!
//! `http` is one request, `sse` a stream of events, `stream` one of bytes; this module has
//! addresses, JSON responses, and failures as text: which daemon did not answer, at which socket,
//! and advice.

mod http;
mod sse;
mod stream;

pub(crate) use http::escaped;
pub(crate) use sse::{Events, Received};
pub(crate) use stream::Piece;

use forebay_admin::MessageId;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use http::{Error, HttpRequest};

/// Default admin socket of the daemon.
pub(crate) const DEFAULT_SOCKET: &str = "/run/forebay/admin.sock";
/// Longest wait for a response that takes the daemon no work; the daemon gives up after 5 s itself.
const LOOK_WITHIN: Duration = Duration::from_secs(10);
/// Longest time for which a watch repeats a query: an upgrade that waits for a slow device ends
/// within it.
const WATCH_AGAIN: Duration = Duration::from_secs(90);
/// Pause between repeated queries.
const WATCH_PAUSE: Duration = Duration::from_millis(200);
/// Longest wait for a change; the daemon gives up after 60 s itself.
const CHANGE_WITHIN: Duration = Duration::from_secs(75);

/// Options of every command that calls the daemon.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Admin {
    /// Admin socket of the daemon
    #[arg(long, value_name = "SOCKET", env = "FOREBAY_ADMIN", default_value = DEFAULT_SOCKET, hide_env_values = true)]
    pub(crate) admin: PathBuf,
    /// Print JSON, as the daemon returns it
    #[arg(long)]
    pub(crate) json: bool,
}

impl Admin {
    /// Returns a client of this daemon.
    pub(crate) fn client(&self) -> Client {
        Client::new(&self.admin)
    }
}

/// Client of one daemon. Every request is a connection of its own.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    socket: PathBuf,
    interrupt: Option<Interrupt>,
}

impl Client {
    /// Returns a client for the daemon on this socket. Sends nothing yet.
    pub(crate) fn new(socket: &Path) -> Self {
        Self { socket: socket.into(), interrupt: None }
    }

    /// Makes the client stop waiting on Ctrl-C.
    pub(crate) fn interruptible(mut self, interrupt: &Interrupt) -> Self {
        self.interrupt = Some(interrupt.clone());
        self
    }

    /// Gets a resource.
    pub(crate) fn get(&self, path: &str) -> Result<Value, Failure> {
        self.json("GET", path, None, LOOK_WITHIN)
    }

    /// Gets a resource, or `None` if it does not exist.
    pub(crate) fn get_if_there(&self, path: &str) -> Result<Option<Value>, Failure> {
        match self.get(path) {
            Err(failure) if failure.is_not_found() => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Gets a resource; the daemon may delay its response up to `extra`.
    pub(crate) fn wait(&self, path: &str, extra: Duration) -> Result<Value, Failure> {
        self.json("GET", path, None, LOOK_WITHIN + extra)
    }

    /// Gets a resource, within `timeout`.
    pub(crate) fn get_within(&self, path: &str, timeout: Duration) -> Result<Value, Failure> {
        self.json("GET", path, None, timeout)
    }

    /// Makes a query of a watch, and repeats it for at most [`WATCH_AGAIN`] while the daemon runs
    /// but does not answer, as during an upgrade that waits for a slow device.
    pub(crate) fn watch<T>(&self, query: impl Fn() -> Result<T, Failure>) -> Result<T, Failure> {
        let until = Instant::now() + WATCH_AGAIN;
        loop {
            match query() {
                Err(failure) if failure.is_unavailable() && Instant::now() < until && !self.is_stopped() => {
                    std::thread::sleep(WATCH_PAUSE);
                }
                answer => return answer,
            }
        }
    }

    /// Gets a resource as text.
    pub(crate) fn text(&self, path: &str) -> Result<String, Failure> {
        self.exchange("GET", path, None, LOOK_WITHIN)
    }

    /// Requests an operation.
    pub(crate) fn post(&self, path: &str, body: Option<&impl Serialize>) -> Result<Value, Failure> {
        self.json("POST", path, body.map(to_text).transpose()?, CHANGE_WITHIN)
    }

    /// Requests an operation without parameters.
    pub(crate) fn post_nothing(&self, path: &str) -> Result<Value, Failure> {
        self.post(path, None::<&Value>)
    }

    /// Requests a change.
    pub(crate) fn patch(&self, path: &str, body: &impl Serialize) -> Result<Value, Failure> {
        self.json("PATCH", path, Some(to_text(body)?), CHANGE_WITHIN)
    }

    /// Requests a removal.
    pub(crate) fn delete(&self, path: &str) -> Result<Value, Failure> {
        self.json("DELETE", path, None, CHANGE_WITHIN)
    }

    /// Follows events; see [`Events`].
    pub(crate) fn events(&self, query: String, after: Option<String>) -> Events {
        Events::new(self.clone(), query, after)
    }

    fn json(
        &self,
        method: &'static str,
        path: &str,
        body: Option<String>,
        timeout: Duration,
    ) -> Result<Value, Failure> {
        let text = self.exchange(method, path, body, timeout)?;
        if text.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_str(&text).map_err(|error| {
            Failure::new(
                MessageId::DaemonAnswer,
                format!("{}: the answer to {path} is not JSON: {error}", self.socket.display()),
            )
            .hint("give the admin socket of a Forebay daemon")
        })
    }

    fn exchange(
        &self,
        method: &'static str,
        path: &str,
        body: Option<String>,
        timeout: Duration,
    ) -> Result<String, Failure> {
        let until = Instant::now() + timeout;
        let stop = || self.is_stopped();
        let request = HttpRequest { method, path, body, headers: Vec::new() };
        let answer = http::ask(&self.socket, &request, timeout, &stop);
        let answer = answer.and_then(|answer| Ok((answer.status, answer.text(until, &stop)?)));
        let (status, text) = answer.map_err(|error| self.no_answer(error, method))?;
        if (200..300).contains(&status) { Ok(text) } else { Err(self.refused(status, path, &text)) }
    }

    fn is_stopped(&self) -> bool {
        self.interrupt.as_ref().is_some_and(Interrupt::came)
    }

    /// Returns true if the socket is that of the packaged service, on a machine with systemd.
    fn is_service(&self) -> bool {
        const UNITS: [&str; 3] = ["/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];
        self.socket == Path::new(DEFAULT_SOCKET)
            && Path::new("/run/systemd/system").exists()
            && UNITS.iter().any(|folder| Path::new(folder).join("forebay.service").exists())
    }

    fn no_answer(&self, error: Error, method: &str) -> Failure {
        let socket = self.socket.display();
        match error {
            Error::Connect(error) => {
                let hint = match error.kind() {
                    ErrorKind::NotFound | ErrorKind::ConnectionRefused if self.is_service() => {
                        "the service is not running: systemctl enable --now forebay"
                    }
                    ErrorKind::NotFound => {
                        "start `forebay serve` (or `forebay run` with --admin SOCKET); give another socket with --admin or FOREBAY_ADMIN"
                    }
                    ErrorKind::ConnectionRefused => {
                        "the daemon that made this socket has ended: start it again"
                    }
                    ErrorKind::PermissionDenied => {
                        "run this with sudo, or as a member of the group that owns the socket"
                    }
                    ErrorKind::TimedOut => "the daemon runs but is too busy: try again, and check its log",
                    _ => "it must be the admin socket of a daemon",
                };
                Failure::new(MessageId::DaemonNotRunning, format!("{socket}: no daemon answers: {error}"))
                    .hint(hint)
            }
            Error::Io(error) if error.kind() == ErrorKind::Interrupted => {
                Failure::new(MessageId::CliInterrupted, "interrupted")
            }
            Error::Io(error) if error.kind() == ErrorKind::TimedOut => Failure::unavailable(
                MessageId::DaemonNoAnswer,
                format!("{socket}: the daemon did not answer in time"),
            )
            .hint(match method {
                "GET" => "a device may be slow, or an upgrade is in progress: try again",
                _ => "it may still carry out the request: check the state before you repeat it",
            }),
            Error::Io(error) => {
                Failure::new(MessageId::DaemonNoAnswer, format!("{socket}: no answer: {error}"))
                    .hint("the daemon may have been stopped: check its log")
            }
            Error::NotHttp => Failure::new(
                MessageId::DaemonNotHttp,
                format!("{socket}: the program that answers there does not speak HTTP"),
            )
            .hint("give the socket of --admin, not the one of --export"),
        }
    }

    /// Returns the failure for a refusal, from a problem of RFC 9457 or the bare text.
    fn refused(&self, status: u16, path: &str, text: &str) -> Failure {
        let problem: Value = serde_json::from_str(text).unwrap_or(Value::Null);
        let words = ["what", "detail", "error", "title"];
        let Some(what) = words.iter().find_map(|name| problem[*name].as_str()) else {
            let (socket, text) = (self.socket.display(), crate::screen::harmless(text.trim()));
            return Failure::new(
                MessageId::DaemonAnswer,
                format!("{socket}: the daemon answered {status} to {path}: {text}"),
            );
        };
        let what = crate::screen::harmless_lines(what.trim_end());
        // A daemon of another version may have IDs that are unknown here.
        let id = MessageId::DaemonProblem;
        let failure = match status {
            404 => Failure::not_found(id, what),
            503 => Failure::unavailable(id, what),
            _ if problem["kind"] == "invalid" => Failure::usage(id, what),
            _ => Failure::new(id, what),
        };
        let failure = match problem["id"].as_str() {
            Some(id) => failure.with_id(crate::screen::harmless(id)),
            None => failure,
        };
        match problem["hint"].as_str().filter(|hint| !hint.is_empty()) {
            Some(hint) => failure.hint(crate::screen::harmless_lines(hint)),
            None => failure,
        }
    }
}

fn to_text(body: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(body)
        .map_err(|error| Failure::new(MessageId::CliInternal, format!("the request is not JSON: {error}")))
}

/// Parses a response into its structure.
pub(crate) fn read<T: DeserializeOwned>(answer: &Value) -> Result<T, Failure> {
    T::deserialize(answer).map_err(|error| {
        Failure::new(MessageId::DaemonAnswer, format!("the answer of the daemon cannot be parsed: {error}"))
            .hint(
                "daemon and command are of different versions: `forebay --version`, `forebay status --json`",
            )
    })
}

/// Parses a list of the API, bare or under its name.
pub(crate) fn list<T: DeserializeOwned>(answer: &Value, name: &str) -> Result<Vec<T>, Failure> {
    read(answer.get(name).unwrap_or(answer))
}

/// Runs `ask` against a daemon that gives these answers, one after the other.
#[cfg(test)]
pub(crate) fn with_answers<T>(answers: Vec<(u16, String)>, ask: impl FnOnce(&Client) -> T) -> T {
    use std::io::{Read, Write};
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let daemon = std::thread::spawn(move || {
        for (status, body) in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all((head + &body).as_bytes()).unwrap();
        }
    });
    let answer = ask(&Client::new(&socket));
    daemon.join().unwrap();
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn client() -> Client {
        Client::new(Path::new("/nowhere/admin.sock"))
    }

    #[test]
    fn a_problem_keeps_its_words_and_its_kind() {
        let problem = json!({ "title": "Not Found", "status": 404, "detail": "d", "kind": "not-found",
            "what": "no volume \"x\"", "hint": "there are: db" });
        let failure = client().refused(404, "/v1/volumes/x", &problem.to_string());
        assert_eq!((failure.to_string().as_str(), failure.code()), ("no volume \"x\"", 1));
        let failure = client().refused(422, "/", r#"{"kind": "invalid", "what": "no such key\u001b"}"#);
        assert_eq!((failure.to_string().as_str(), failure.code()), ("no such key\\u{1b}", 2));
        assert!(client().refused(500, "/p", "<html>").to_string().ends_with("500 to /p: <html>"));
    }

    #[test]
    fn a_missing_daemon_is_named_with_a_hint() {
        let failure = client().get("/v1/daemon").unwrap_err();
        let text = format!("{failure:?}");
        assert!(
            text.contains("/nowhere/admin.sock: no daemon answers") && text.contains("forebay serve"),
            "{text}"
        );
    }

    #[test]
    fn lists_come_alone_or_under_a_name() {
        assert_eq!(list::<u32>(&json!([1]), "x").unwrap(), [1]);
        assert_eq!(list::<u32>(&json!({ "x": [1] }), "x").unwrap(), [1]);
        assert!(list::<u32>(&json!({ "y": 1 }), "x").is_err());
    }
}

//! The sockets of a lane's sessions.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use forebay_export::uri::Endpoint;
use rustix::event::{PollFd, PollFlags};

use super::{Input, Shared, address};
use crate::connect::Transport;
use crate::lane::Lane;

/// Most bytes of one receive, and receives of a session before others have their turn.
const RECEIVE_BYTES: usize = 256 << 10;
const RECEIVES_MAX: usize = 16;
/// Most threads that connect at a time: twice the sessions of a lane.
const CONNECTING_MAX: usize = 8;

#[derive(Debug)]
struct Socket {
    transport: Transport,
    /// The server does not take bytes now.
    is_full: bool,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Sockets {
    endpoint: Endpoint,
    timeout: Duration,
    by_session: BTreeMap<u64, Socket>,
    /// Counts the threads that connect: each holds a copy.
    connecting: Arc<()>,
    received: Vec<u8>,
}

impl Sockets {
    pub(super) fn new(endpoint: Endpoint, timeout: Duration) -> Sockets {
        Sockets {
            endpoint,
            timeout,
            by_session: BTreeMap::new(),
            connecting: Arc::default(),
            received: vec![0; RECEIVE_BYTES],
        }
    }

    pub(super) fn address(&self) -> String {
        address(&self.endpoint).display().to_string()
    }

    /// Connects on a thread of its own, which reports the result. A connect to a paused server's
    /// unix socket hangs without a limit, so the number of these threads has one.
    pub(super) fn connect(&self, session: u64, shared: &Arc<Shared>) {
        if Arc::strong_count(&self.connecting) > CONNECTING_MAX {
            let error = io::Error::new(io::ErrorKind::TimedOut, "earlier attempts have not ended");
            return shared.push(Input::Connected(session, Err(error)));
        }
        let (endpoint, timeout, reports) = (self.endpoint.clone(), self.timeout, Arc::clone(shared));
        let counted = Arc::clone(&self.connecting);
        let work = move || {
            let opened = open(&endpoint, timeout);
            drop(counted);
            reports.push(Input::Connected(session, opened));
        };
        if let Err(error) = std::thread::Builder::new().name("connect-nbd".into()).spawn(work) {
            shared.push(Input::Connected(session, Err(error)));
        }
    }

    pub(super) fn add(&mut self, session: u64, transport: Transport) -> io::Result<()> {
        transport.set_nonblocking()?;
        self.by_session.insert(session, Socket { transport, is_full: false });
        Ok(())
    }

    /// Closes a socket, after an attempt to send the last bytes. Without last bytes the session did
    /// not end in an orderly way: the kernel drops what it has not sent, and sends nothing again.
    pub(super) fn close(&mut self, session: u64, last: &[u8]) {
        if let Some(mut socket) = self.by_session.remove(&session) {
            if last.is_empty() {
                abort(&socket.transport);
            }
            let _ = socket.transport.write(last); // the server notices the end anyway
        }
    }

    /// Sends what the lane has for the sockets that take it.
    pub(super) fn send(&mut self, lane: &mut Lane, shared: &Shared) {
        for (session, socket) in &mut self.by_session {
            while !socket.is_full && !lane.output(*session).is_empty() {
                match socket.transport.write(lane.output(*session)) {
                    Ok(count) => lane.sent(shared.now(), *session, count),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // After another error the server may still have sent something: the end of its
                    // side follows.
                    Err(_) => socket.is_full = true,
                }
            }
        }
    }

    /// The sessions, and what to poll of each.
    pub(super) fn polled(&self, lane: &mut Lane) -> (Vec<u64>, Vec<PollFd<'_>>) {
        let polled = self.by_session.iter().map(|(session, socket)| {
            let sends = !lane.output(*session).is_empty();
            let events = if sends { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            PollFd::from_borrowed_fd(socket.transport.fd(), events)
        });
        let polled = polled.collect();
        (self.by_session.keys().copied().collect(), polled)
    }

    /// Sockets take bytes again, or it is tried.
    pub(super) fn try_all(&mut self) {
        self.by_session.values_mut().for_each(|socket| socket.is_full = false);
    }

    /// Passes what a socket has received to the lane.
    pub(super) fn receive(&mut self, session: u64, lane: &mut Lane, shared: &Shared) {
        for _ in 0..RECEIVES_MAX {
            let Some(socket) = self.by_session.get_mut(&session) else { return };
            let why = match socket.transport.read(&mut self.received) {
                Ok(0) => "the server closed the connection".to_owned(),
                Ok(count) => {
                    lane.received(shared.now(), session, &self.received[..count]);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => format!("the connection failed: {error}"),
            };
            self.close(session, &[]);
            lane.ended(shared.now(), session, &why);
            return;
        }
    }
}

/// Makes the close of a TCP socket drop its bytes: after a partition the kernel would send them
/// again for minutes, when the quarantine has ended.
fn abort(transport: &Transport) {
    if let Transport::Tcp(stream) = transport {
        let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
    }
}

/// Connects a socket, within the time for one attempt at each address of a name.
fn open(endpoint: &Endpoint, timeout: Duration) -> io::Result<Transport> {
    let (host, port) = match endpoint {
        Endpoint::Unix(path) => return UnixStream::connect(path).map(Transport::Unix),
        Endpoint::Tcp { host, port } => (host, port),
    };
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host.as_str(), *port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(Transport::Tcp(stream));
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

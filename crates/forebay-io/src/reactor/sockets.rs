//! Sockets and listeners of the reactor: their lifecycle, and the order of operations on one
//! socket.
//!
//! Invariants:
//! - At most one send and one receive of a socket are at the engine; later ones wait in order. So
//!   bytes of two sends never mix, however short the kernel's sends are.
//! - A socket's descriptor is closed once the caller has closed the socket and its last operation
//!   has been reported.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use super::connections::{Listener, Phase, Socket};
use super::{EngineKind, ListenerId, Reactor, SocketId};
use crate::engine::Syscall;
use crate::error::IoFailure;
use crate::slots::OpKind;
use crate::socket::{PeerCred, peer_address, peer_cred, peer_groups};
use crate::sys;

impl Reactor {
    /// Returns whether sockets and listeners must be non-blocking. (The ring waits in the kernel
    /// only on blocking ones.)
    fn wants_nonblocking(&self) -> bool {
        self.engine() == EngineKind::Psync
    }

    /// Adds a listening socket. The reactor owns it and may change its blocking mode.
    ///
    /// # Errors
    /// When the descriptor's mode cannot be set.
    pub fn add_listener(&mut self, fd: OwnedFd) -> Result<ListenerId, IoFailure> {
        sys::set_nonblocking(fd.as_raw_fd(), self.wants_nonblocking())?;
        self.listeners.push(Some(Listener { fd, accepts: Vec::new(), closing: false }));
        Ok(ListenerId((self.listeners.len() - 1) as u32))
    }

    /// Closes a listener; accepts on it are reported as cancelled (or as done, if they were
    /// faster).
    pub fn close_listener(&mut self, id: ListenerId) {
        let Some(listener) = self.listeners.get_mut(id.0 as usize).and_then(Option::as_mut) else { return };
        listener.closing = true;
        if listener.accepts.is_empty() {
            self.listeners[id.0 as usize] = None;
            return;
        }
        for &index in &listener.accepts {
            self.engine.cancel(self.memory.slots.key(index));
        }
    }

    /// Stops accepting for now: accepts on the listener are reported as cancelled, or as done if
    /// they were faster. The listener stays, and clients wait in its backlog.
    pub fn cancel_accepts(&mut self, id: ListenerId) {
        let Some(Some(listener)) = self.listeners.get(id.0 as usize) else { return };
        for &index in &listener.accepts {
            self.engine.cancel(self.memory.slots.key(index));
        }
    }

    /// Releases a listener to the caller. Returns `None` if there is none, or accepts on it have
    /// not been reported yet.
    pub fn release_listener(&mut self, id: ListenerId) -> Option<OwnedFd> {
        let slot = self.listeners.get_mut(id.0 as usize)?;
        let listener = slot.take_if(|listener| listener.accepts.is_empty() && !listener.closing)?;
        Some(listener.fd)
    }

    /// Stops receiving for now: the receives of a socket are reported as cancelled, or as done if
    /// they were faster. No data of the peer is lost, and the socket stays open.
    pub fn cancel_receives(&mut self, id: SocketId) {
        let Some(socket) = self.sockets.get_mut(id.0) else { return };
        let waiting: Vec<u32> = socket.receives.drain(1.min(socket.receives.len())..).collect();
        let at_engine = socket.receives.front().copied();
        if let Some(index) = at_engine {
            self.engine.cancel(self.memory.slots.key(index));
        }
        for index in waiting {
            self.report(index, Err(IoFailure::CANCELLED));
        }
    }

    /// Releases a socket to the caller. Returns `None` if there is none, it was closed, or an
    /// operation on it has not been reported yet.
    pub fn release_socket(&mut self, id: SocketId) -> Option<OwnedFd> {
        let socket = self.sockets.get(id.0)?;
        if socket.phase != Phase::Open || !socket.sends.is_empty() || !socket.receives.is_empty() {
            return None;
        }
        self.sockets.remove(id.0).map(|socket| socket.fd)
    }

    pub(super) fn open_listener(&self, id: ListenerId) -> Result<u32, IoFailure> {
        match self.listeners.get(id.0 as usize) {
            Some(Some(listener)) if !listener.closing => Ok(id.0),
            _ => Err(IoFailure::CANCELLED),
        }
    }

    /// Returns whether the listener of this accept is still open.
    pub(super) fn is_accept_wanted(&self, index: u32) -> bool {
        match self.memory.slots.get(index).kind {
            OpKind::Accept { listener } => self.open_listener(ListenerId(listener)).is_ok(),
            _ => false,
        }
    }

    pub(super) fn accept_ended(&mut self, listener: u32, index: u32) {
        let Some(entry) = self.listeners.get_mut(listener as usize) else { return };
        let Some(open) = entry else { return };
        open.accepts.retain(|&accept| accept != index);
        if open.closing && open.accepts.is_empty() {
            *entry = None;
        }
    }

    /// Adds a connected stream socket. The reactor owns it and may change its blocking mode.
    ///
    /// # Errors
    /// When the descriptor's mode cannot be set, or there are 65,536 sockets already.
    pub fn add_socket(&mut self, fd: OwnedFd) -> Result<SocketId, IoFailure> {
        sys::set_nonblocking(fd.as_raw_fd(), self.wants_nonblocking())?;
        sys::set_nodelay(fd.as_raw_fd());
        sys::notice_absence(fd.as_raw_fd());
        let socket = Socket { fd, phase: Phase::Open, sends: VecDeque::new(), receives: VecDeque::new() };
        self.sockets.insert(socket).ok_or(IoFailure::from_errno(libc::EMFILE))
    }

    /// Credentials of the peer of a unix socket.
    ///
    /// # Errors
    /// When the socket is closed or not a unix socket.
    pub fn peer_cred(&self, id: SocketId) -> Result<PeerCred, IoFailure> {
        let socket = self.sockets.get(id.0).ok_or(IoFailure::CANCELLED)?;
        Ok(peer_cred(socket.fd.as_fd())?)
    }

    /// The supplementary groups of the peer of a unix socket.
    ///
    /// # Errors
    /// When the socket is closed or not a unix socket.
    pub fn peer_groups(&self, id: SocketId) -> Result<Vec<u32>, IoFailure> {
        let socket = self.sockets.get(id.0).ok_or(IoFailure::CANCELLED)?;
        Ok(peer_groups(socket.fd.as_fd())?)
    }

    /// The address on the other side of a TCP socket.
    ///
    /// # Errors
    /// When the socket is closed or not a TCP socket.
    pub fn peer_address(&self, id: SocketId) -> Result<std::net::IpAddr, IoFailure> {
        let socket = self.sockets.get(id.0).ok_or(IoFailure::CANCELLED)?;
        Ok(peer_address(socket.fd.as_fd())?)
    }

    /// Shuts down the sending side; receiving continues. For a socket on which no send is in
    /// flight.
    pub fn finish_socket(&mut self, id: SocketId) {
        let Some(socket) = self.sockets.get(id.0) else { return };
        // SAFETY: shutdown takes no pointers. It fails if the peer is gone, which the next receive
        // also reports.
        let _ = sys::check(unsafe { libc::shutdown(socket.fd.as_raw_fd(), libc::SHUT_WR) });
    }

    /// Bytes of submitted sends that the peer has not taken: those that wait here and, as far as
    /// the kernel reports them, those in its buffers. A measure of progress; bytes in the kernel
    /// can count for more than their length.
    pub fn unsent_bytes(&self, id: SocketId) -> u64 {
        let Some(socket) = self.sockets.get(id.0) else { return 0 };
        let slots = socket.sends.iter().map(|&index| self.memory.slots.get(index));
        let waiting: u64 = slots.map(|slot| slot.len - slot.done).sum();
        waiting + u64::from(sys::unsent_bytes(socket.fd.as_raw_fd()))
    }

    /// Returns whether the peer has closed or reset the connection. For a socket without a receive
    /// in flight, which would otherwise not detect it. `half`: a peer that only shut down its
    /// sending side counts too; over TCP that looks the same.
    pub fn has_hung_up(&self, id: SocketId, half: bool) -> bool {
        self.sockets.get(id.0).is_some_and(|socket| sys::has_hung_up(socket.fd.as_raw_fd(), half))
    }

    /// Closes a socket: receives end as cancelled, submitted sends still go out, then the
    /// descriptor is closed. A peer that stops reading can block those sends forever: see
    /// [`Reactor::abort_socket`].
    pub fn close_socket(&mut self, id: SocketId) {
        self.shut(id, Phase::Closing);
    }

    /// Closes a socket at once: receives and sends end as cancelled.
    pub fn abort_socket(&mut self, id: SocketId) {
        self.shut(id, Phase::Aborted);
    }

    fn shut(&mut self, id: SocketId, phase: Phase) {
        let Some(socket) = self.sockets.get_mut(id.0) else { return };
        if socket.phase == Phase::Aborted {
            return;
        }
        socket.phase = phase;
        let mut waiting: Vec<u32> = socket.receives.drain(1.min(socket.receives.len())..).collect();
        let mut at_engine: Vec<u32> = socket.receives.iter().copied().collect();
        if phase == Phase::Aborted {
            waiting.extend(socket.sends.drain(1.min(socket.sends.len())..));
            at_engine.extend(socket.sends.iter());
        }
        let idle = socket.sends.is_empty() && socket.receives.is_empty();
        for index in at_engine {
            self.engine.cancel(self.memory.slots.key(index));
        }
        for index in waiting {
            self.report(index, Err(IoFailure::CANCELLED));
        }
        if idle {
            self.sockets.remove(id.0);
        }
    }

    /// Ends all operations on sockets and listeners, for the drop of the reactor.
    pub(super) fn abort_all(&mut self) {
        for index in 0..self.listeners.len() {
            self.close_listener(ListenerId(index as u32));
        }
        for id in self.sockets.ids() {
            self.abort_socket(id);
        }
    }

    /// Queues a socket operation and starts it if it is the first of its kind.
    pub(super) fn start_socket(&mut self, index: u32) {
        let kind = self.memory.slots.get(index).kind;
        let (OpKind::Recv { socket: id } | OpKind::Send { socket: id }) = kind else { return };
        if self.memory.slots.get(index).len == 0 {
            // Nothing to send, or an empty span to receive into (the result would look like the end
            // of the stream).
            let result = if matches!(kind, OpKind::Send { .. }) { Ok(0) } else { Err(IoFailure::INVALID) };
            return self.report(index, result);
        }
        let Some(socket) = self.sockets.get_mut(id) else {
            return self.report(index, Err(IoFailure::CANCELLED));
        };
        let queue =
            if matches!(kind, OpKind::Recv { .. }) { &mut socket.receives } else { &mut socket.sends };
        queue.push_back(index);
        if queue.len() == 1 {
            self.push_step(index);
        }
    }

    /// The system call of a socket operation.
    pub(super) fn socket_step(&mut self, index: u32) -> Result<Syscall, IoFailure> {
        match self.memory.slots.get(index).kind {
            OpKind::Accept { listener } => {
                let entry = self.listeners.get_mut(listener as usize).and_then(Option::as_mut);
                let entry = entry.ok_or(IoFailure::CANCELLED)?;
                if !entry.accepts.contains(&index) {
                    entry.accepts.push(index);
                }
                Ok(Syscall::Accept { fd: entry.fd.as_raw_fd() })
            }
            OpKind::Recv { socket } => {
                let fd = self.sockets.get(socket).ok_or(IoFailure::CANCELLED)?.fd.as_raw_fd();
                let span = self.memory.slots.get(index).spans[0];
                Ok(Syscall::Recv { fd, memory: self.memory.pool.address_of_pinned(span), len: span.len })
            }
            OpKind::Send { socket } => {
                let fd = self.sockets.get(socket).ok_or(IoFailure::CANCELLED)?.fd.as_raw_fd();
                let memory = &mut *self.memory;
                let slot = memory.slots.get_mut(index);
                slot.fill_vectors(&memory.pool);
                slot.message.msg_iov = slot.vectors.as_mut_ptr();
                slot.message.msg_iovlen = slot.vectors.len() as _;
                Ok(Syscall::Send { fd, message: &raw const slot.message })
            }
            _ => Err(IoFailure::INVALID),
        }
    }

    /// Returns whether the socket of this send was aborted.
    pub(super) fn is_aborted(&self, index: u32) -> bool {
        match self.memory.slots.get(index).kind {
            OpKind::Send { socket } => self.sockets.get(socket).is_none_or(|s| s.phase == Phase::Aborted),
            _ => false,
        }
    }

    /// Handles the end of the first operation of a kind: starts the next one, or finally closes the
    /// socket.
    pub(super) fn socket_op_ended(&mut self, id: u32, index: u32) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let mut next = None;
        for queue in [&mut socket.sends, &mut socket.receives] {
            if queue.front() == Some(&index) {
                queue.pop_front();
                next = queue.front().copied();
            }
        }
        if let Some(next) = next {
            self.push_step(next);
        } else if socket.phase != Phase::Open && socket.sends.is_empty() && socket.receives.is_empty() {
            self.sockets.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Span;
    use crate::reactor::{EnginePreference, Limits, Op};
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    fn option(fd: &OwnedFd, level: libc::c_int, name: libc::c_int) -> libc::c_int {
        let (mut value, mut len) = (0, size_of::<libc::c_int>() as libc::socklen_t);
        // SAFETY: the value and its length are writable, and the length is that of the value.
        let told =
            unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len) };
        assert_eq!(told, 0);
        value
    }

    #[test]
    fn a_tcp_client_that_vanishes_is_noticed() {
        let (mut reactor, _) = Reactor::open(EnginePreference::Psync, Limits::default()).unwrap();
        let (listener, at) = crate::listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = reactor.add_listener(listener).unwrap();
        let _client = std::net::TcpStream::connect(at).unwrap();
        reactor.submit(1, Op::Accept { listener });
        let mut done = Vec::new();
        while done.is_empty() {
            reactor.wait(None, &mut done).unwrap();
        }
        let fd = &reactor.sockets.get(done[0].result.unwrap()).unwrap().fd;
        assert_eq!(option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
        let tcp = |name| option(fd, libc::IPPROTO_TCP, name);
        assert_eq!((tcp(libc::TCP_KEEPIDLE), tcp(libc::TCP_KEEPINTVL)), (60, 15));
        assert_eq!(tcp(libc::TCP_USER_TIMEOUT), 180_000);
    }

    #[test]
    fn progress_within_a_send_is_seen() {
        for engine in [EnginePreference::Auto, EnginePreference::Psync] {
            let (mut reactor, _) = Reactor::open(engine, Limits::default()).unwrap();
            let (mut client, server) = UnixStream::pair().unwrap();
            let socket = reactor.add_socket(server.into()).unwrap();
            assert_eq!(reactor.unsent_bytes(socket), 0);
            let bytes = 4 << 20;
            let buf = reactor.pool_mut().alloc(bytes).unwrap();
            reactor.submit(1, Op::Send { socket, spans: &[Span::new(buf, 0, bytes as u32)] });
            let mut done = Vec::new();
            let look = |reactor: &mut Reactor, done: &mut Vec<_>| {
                reactor.wait(Some(Duration::from_millis(50)), done).unwrap();
                reactor.unsent_bytes(socket)
            };
            let first = look(&mut reactor, &mut done);
            assert!(first > bytes as u64 / 2, "{first}");
            assert_eq!(look(&mut reactor, &mut done), first, "nobody has read");
            client.read_exact(&mut vec![0; 128 << 10]).unwrap();
            let then = look(&mut reactor, &mut done);
            assert!(then < first, "{first} and then {then}");
            let rest = std::thread::spawn(move || client.read_exact(&mut vec![0; bytes - (128 << 10)]));
            while !rest.is_finished() {
                look(&mut reactor, &mut done);
            }
            rest.join().unwrap().unwrap();
            assert_eq!(look(&mut reactor, &mut done), 0);
            assert_eq!(done.len(), 1);
        }
    }
}

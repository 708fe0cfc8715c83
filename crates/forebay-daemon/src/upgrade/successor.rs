//! The successor's side: it receives everything from its predecessor, opens it, and continues once
//! permitted.

use super::HandoverManifest;
use super::wire::{Message, PROTOCOL, Socket, Wire, WireError};
use forebay_pool::handover::HandoverSockets;
use std::os::fd::AsFd;
use std::time::Duration;

/// Time for the predecessor to quiesce and to close its pools.
const PASS_WITHIN: Duration = Duration::from_secs(120);
/// Time for the predecessor's last message.
const GO_ON_WITHIN: Duration = Duration::from_secs(30);

/// The socket to the running daemon: the standard input.
#[derive(Debug)]
pub(crate) struct Predecessor {
    wire: Wire,
}

impl Predecessor {
    /// # Errors
    /// The standard input is not the socket of a predecessor.
    pub(crate) fn from_stdin() -> Result<Self, WireError> {
        let fd = std::io::stdin().as_fd().try_clone_to_owned();
        let fd = fd.map_err(|error| WireError::Unclear(error.to_string()))?;
        if rustix::net::sockopt::socket_type(&fd) != Ok(rustix::net::SocketType::SEQPACKET) {
            return Err(WireError::Unclear("standard input is not a socket of a running daemon".into()));
        }
        Ok(Self { wire: Wire::over(fd)? })
    }

    /// Reports a valid configuration. Waits until the predecessor has quiesced.
    ///
    /// # Errors
    /// The predecessor has ended, or continues by itself.
    pub(crate) fn hello(&self) -> Result<(HandoverSockets, HandoverManifest), WireError> {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        self.wire.send_message(&Message::Hello { protocol: PROTOCOL, version })?;
        let mut sockets = HandoverSockets::default();
        loop {
            match self.wire.receive(PASS_WITHIN)?.into_socket()? {
                Socket::Listener(listener) => sockets.listeners.push(listener),
                Socket::Guest(guest) => sockets.guests.push(guest),
                Socket::None(Message::Open(manifest)) => return Ok((sockets, manifest)),
                Socket::None(message) => return Err(WireError::Unclear(format!("unexpected {message:?}"))),
            }
        }
    }

    /// Reports that everything is served. Returns once this process may answer clients: when the
    /// predecessor permits it, or has ended.
    ///
    /// # Errors
    /// The predecessor runs, and does not permit it: it may continue by itself.
    pub(crate) fn ready(&self) -> Result<(), WireError> {
        match self.wire.send_message(&Message::Ready) {
            Ok(()) => {}
            Err(WireError::Ended) => return Ok(()),
            Err(error) => return Err(error),
        }
        match self.wire.receive(GO_ON_WITHIN) {
            Ok(received) if matches!(received.message, Message::GoOn) => Ok(()),
            // The predecessor kills this process before it takes anything back, so the end of the
            // socket means that the predecessor is gone.
            Err(WireError::Ended) => Ok(()),
            Ok(received) => Err(WireError::Unclear(format!("unexpected {:?}", received.message))),
            Err(error) => Err(error),
        }
    }

    /// Reports that this process cannot take over.
    pub(crate) fn give_up(&self, why: &str) {
        let _ = self.wire.send_message(&Message::Failed(why.to_owned())); // closing this end does the same
    }
}

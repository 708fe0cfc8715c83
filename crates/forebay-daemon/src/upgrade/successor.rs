//! The side of the daemon that takes over: it hears from its predecessor what there is, opens it,
//! and goes on once it may.

use super::Duties;
use super::wire::{Message, PROTOCOL, Socket, Wire, WireError};
use forebay_pool::handover::Inheritance;
use std::os::fd::AsFd;
use std::time::Duration;

/// Time for the predecessor to quiesce and to close its pools.
const PASS_WITHIN: Duration = Duration::from_secs(120);
/// Time for the predecessor to say its last message.
const GO_ON_WITHIN: Duration = Duration::from_secs(30);

/// The way to the daemon that runs: the standard input.
#[derive(Debug)]
pub(crate) struct Predecessor {
    wire: Wire,
}

impl Predecessor {
    /// # Errors
    /// The standard input is not what a predecessor gives.
    pub(crate) fn from_stdin() -> Result<Self, WireError> {
        let fd = std::io::stdin().as_fd().try_clone_to_owned();
        let fd = fd.map_err(|error| WireError::Unclear(error.to_string()))?;
        if rustix::net::sockopt::socket_type(&fd) != Ok(rustix::net::SocketType::SEQPACKET) {
            return Err(WireError::Unclear("standard input is no socket of a running daemon".into()));
        }
        Ok(Self { wire: Wire::over(fd)? })
    }

    /// The configuration is good. Waits until the predecessor has quiesced.
    ///
    /// # Errors
    /// The predecessor has ended, or goes on by itself.
    pub(crate) fn hello(&self) -> Result<(Inheritance, Duties), WireError> {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        self.wire.send_message(&Message::Hello { protocol: PROTOCOL, version })?;
        let mut inheritance = Inheritance::default();
        loop {
            match self.wire.receive(PASS_WITHIN)?.into_socket()? {
                Socket::Listener(listener) => inheritance.listeners.push(listener),
                Socket::Guest(guest) => inheritance.guests.push(guest),
                Socket::None(Message::Open(duties)) => return Ok((inheritance, duties)),
                Socket::None(message) => return Err(WireError::Unclear(format!("{message:?} was not due"))),
            }
        }
    }

    /// Everything is served. Returns once clients may be answered: when the predecessor says so, or
    /// has ended.
    ///
    /// # Errors
    /// The predecessor is there, and does not say so: it may go on by itself.
    pub(crate) fn ready(&self) -> Result<(), WireError> {
        match self.wire.send_message(&Message::Ready) {
            Ok(()) => {}
            Err(WireError::Ended) => return Ok(()),
            Err(error) => return Err(error),
        }
        match self.wire.receive(GO_ON_WITHIN) {
            Ok(received) if matches!(received.message, Message::GoOn) => Ok(()),
            // It kills this process before it takes anything back, so its end means that it is
            // gone.
            Err(WireError::Ended) => Ok(()),
            Ok(received) => Err(WireError::Unclear(format!("{:?} was not due", received.message))),
            Err(error) => Err(error),
        }
    }

    /// This cannot be done.
    pub(crate) fn give_up(&self, why: &str) {
        let _ = self.wire.send_message(&Message::Failed(why.to_owned())); // it sees our end as well
    }
}

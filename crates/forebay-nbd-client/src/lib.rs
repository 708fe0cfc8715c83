//! The client side of NBD.
//!
//! - [`fault`]: bugs that the simulation must find.
//! - [`session`]: one connection, as a state machine without a socket.
//! - [`lane`]: a remote store through outages, as a state machine over sessions.
//! - [`blocking`]: a client that waits, for demos, replays and tests.
//! - [`connect`]: a socket of either kind.
//! - [`driver`]: the thread of a lane, behind the interface of a remote store.

#![forbid(unsafe_code)]

pub mod fault;
pub mod session;

pub mod lane;

pub mod blocking;
pub mod connect;

pub mod driver;

pub use blocking::{ClientError, NbdClient, Reply, SEND_BYTES_KEPT, list_exports};
pub use connect::Transport;
pub use session::{
    ContextStatus, HandshakeOptions, RequestError, ServerInfo, Session, SessionError, StatusExtent,
};

//! The NBD protocol: fixed newstyle handshake, simple and structured replies, block status.
//!
//! Reading order: [`codec`] (bytes), [`handshake`] (what is agreed), [`session`] (a connection on
//! the server side), [`reply`] (answers), [`client`] (the other end). `docs/use/nbd.md` says what
//! is supported and who needs it.

pub mod client;
pub mod codec;
pub mod handshake;
pub mod reply;
pub mod session;

pub use client::{ClientError, NbdClient};
pub use codec::Errno;
pub use handshake::{Context, Contexts, Tls};
pub use reply::{Extent, Replier, ReplyHeader};
pub use session::{CloseReason, Input, Limits, NbdRequest, NbdStep, Session};

//! The NBD protocol: fixed newstyle handshake, simple and structured replies, block status.
//!
//! Reading order: [`codec`] (bytes), [`handshake`] (negotiation), [`session`] (a connection on the
//! server side), [`reply`] (replies). `docs/use/nbd.md` lists the supported features and their
//! users.

pub mod codec;
pub mod handshake;
pub mod reply;
pub mod session;

pub use codec::Errno;
pub use handshake::{Context, Contexts, Tls};
pub use reply::{Extent, Replier, ReplyHeader};
pub use session::{CloseReason, Input, Limits, NbdRequest, NbdStep, Session};

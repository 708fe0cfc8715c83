//! Volumes as block devices: the kernel's ublk driver (Linux 6.5 and later).
//!
//! A device has two sides. [`Control`] gives commands to the driver; those wait, so they are for
//! threads that may. By the [`Channel`] requests come and answers go: it is handed to the reactor
//! of the thread that serves the device (`reactor/ublk.rs`). Payloads are copied between a request
//! and a buffer of the reactor's pool when the request is known (`UBLK_F_USER_COPY`), so tags that
//! have no request have no memory.
//!
//! [`Claim`] keeps others from mounting a device that is to be removed.
//!
//! Not known here: names of devices, volumes, when a device is to be made or removed.

mod channel;
mod control;
mod error;
pub(crate) mod wire;

pub use channel::{Channel, Claim};
pub use control::{COMMAND_TIMEOUT, Control, Wanted};
pub use error::UblkError;
pub use wire::{DESCRIPTOR_BYTES, DeviceInfo, State};

//! Volumes as block devices: the kernel's ublk driver (Linux 6.5 and later).
//!
//! A device has two sides. [`Control`] issues commands to the driver; they block, so they are for
//! threads that may block. The [`Channel`] delivers requests and takes answers: the reactor of the
//! thread that serves the device owns it (`reactor/ublk.rs`). Payloads are copied between a request
//! and a buffer of the reactor's pool once the request is known (`UBLK_F_USER_COPY`), so tags
//! without a request use no memory.
//!
//! [`Claim`] prevents other users from mounting a device that will be removed.
//!
//! Not known here: names of devices, volumes, when to create or remove a device.

mod channel;
mod control;
mod error;
pub(crate) mod wire;

pub use channel::{Channel, Claim};
pub use control::{COMMAND_TIMEOUT, Control, Wanted};
pub use error::UblkError;
pub use wire::{DESCRIPTOR_BYTES, DeviceInfo, State};

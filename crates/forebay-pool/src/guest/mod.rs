//! Volumes as block devices of virtual machines: the export `vhost-user:`.
//!
//! A virtual machine monitor (the *frontend*) connects to a unix socket, hands over the memory of
//! its guest, and says where the rings with the guest's requests lie in it. From then on guest and
//! pool meet in that memory, and the socket is silent.
//!
//! Two threads share the work. One for each export ([`control`]) listens, receives the frontend's
//! messages ([`session`]), maps memory ([`memory`]) and looks at descriptors, all of which may
//! wait. What it makes of them it gives to the pool's thread as whole orders ([`Order`]), and waits
//! until each is carried out. The pool's thread ([`server`], [`ring`]) owns rings and requests. It
//! waits for nobody: it watches event counters with its reactor, and reads and writes memory that
//! is there.
//!
//! - A guest's data is copied, once: into a buffer before a write, out of one after a read. So what
//!   was checked is what is written, whatever the guest does meanwhile.
//! - One frontend at a time. The next one is let in when every request of the last one has ended:
//!   else an old write could come after a new one.

pub(crate) mod control;
mod memory;
mod requests;
mod ring;
mod server;
mod session;

use memory::Mapped;
pub(crate) use server::{GuestOptions, GuestServer};

use forebay_export::virtio::block::{Device, ID_BYTES};
use forebay_export::virtio::inflight::Inflight;
use forebay_export::virtio::ring::{Agreed, Layout};
use forebay_io::{EventCounter, PeerCred};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

/// Rings of a device.
pub(crate) const RINGS_MAX: u16 = 64;

/// The device, as both threads see it.
#[derive(Debug)]
pub(crate) struct Shared {
    size_bytes: AtomicU64,
    block_bytes: u32,
    id: [u8; ID_BYTES],
}

impl Shared {
    pub(crate) fn new(size_bytes: u64, block_bytes: u32, name: &str) -> Self {
        Self { size_bytes: AtomicU64::new(size_bytes), block_bytes, id: Device::id_of(name) }
    }

    fn set_size_bytes(&self, size_bytes: u64) {
        self.size_bytes.store(size_bytes, Ordering::Release);
    }

    fn device(&self) -> Device {
        let size_bytes = self.size_bytes.load(Ordering::Acquire);
        Device { size_bytes, block_bytes: self.block_bytes, rings: RINGS_MAX, id: self.id }
    }
}

/// Answered when an order is carried out.
type Done<T> = SyncSender<T>;

/// What the thread of an export has the pool do.
#[derive(Debug)]
pub(crate) enum Order {
    /// A frontend has connected.
    Came(Arrival),
    /// Another one was turned away, with the reason.
    TurnedAway(String),
    /// The guest has this memory; the answer is what it had before, to be unmapped elsewhere.
    Memory(Mapped, Done<Mapped>),
    /// A ring is to be served.
    Start(Box<Start>, Done<Result<(), String>>),
    /// A ring is to be served, or only kept.
    Enable(u16, bool, Done<()>),
    /// Signals of a ring go there from now on.
    SetCall(u16, Option<EventCounter>, Done<()>),
    /// A ring is not served any more; the answer is its position, once all is answered.
    Stop(u16, Done<u16>),
    /// On this channel the frontend wants to hear of changes.
    Channel(UnixStream),
    /// The frontend has gone; the answer is its memory, when all of its requests have ended.
    Went(Option<String>, Done<Mapped>),
}

/// A frontend.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// Its connection, to end it.
    stream: UnixStream,
    cred: PeerCred,
}

/// A ring that is to be served.
#[derive(Debug)]
pub(crate) struct Start {
    ring: u16,
    layout: Layout,
    agreed: Agreed,
    features: u64,
    base: u16,
    /// And the memory that it is in.
    inflight: Option<(Inflight, Arc<Mapped>)>,
    is_enabled: bool,
    kick: EventCounter,
    call: Option<EventCounter>,
    error: Option<EventCounter>,
}

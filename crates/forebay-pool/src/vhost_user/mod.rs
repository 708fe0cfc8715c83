//! Volumes as block devices of virtual machines: the export `vhost-user:`.
//!
//! A virtual machine monitor (the *frontend*) connects to a unix socket, passes the memory of its
//! guest, and gives the location of the rings with the guest's requests in it. From then on guest
//! and pool communicate through that memory, and the socket is silent.
//!
//! Two threads share the work. One thread for each export ([`control`]) listens, receives the
//! frontend's messages ([`session`]), maps memory ([`memory`]) and checks descriptors, all of which
//! can wait. It passes the results to the pool's thread as complete requests ([`ControlRequest`]),
//! and waits until each is executed. The pool's thread ([`server`], [`ring`]) owns rings and
//! requests. It never waits: it watches event counters with its reactor, and reads and writes
//! mapped memory.
//!
//! - A guest's data is copied once: into a buffer before a write, out of one after a read. So the
//!   data that was checked is the data that is written, even if the guest changes it meanwhile.
//! - One frontend at a time. The next one is accepted when every request of the last one has ended:
//!   else an old write could arrive after a new one.

pub(crate) mod control;
mod memory;
mod requests;
mod ring;
mod server;
mod session;

use memory::Mapped;
pub(crate) use server::{VhostUserOptions, VhostUserServer};

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

/// The device state that both threads share.
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

/// Answered when a control request is executed.
type Done<T> = SyncSender<T>;

/// RequestSender of an export's thread to the pool.
#[derive(Debug)]
pub(crate) enum ControlRequest {
    /// A frontend has connected.
    Came(Arrival),
    /// Another one was refused, with the reason.
    TurnedAway(String),
    /// The guest's new memory; the answer is the previous one, to be unmapped elsewhere.
    Memory(Mapped, Done<Mapped>),
    /// Start serving a ring.
    Start(Box<Start>, Done<Result<(), String>>),
    /// Serve a ring, or only keep it.
    Enable(u16, bool, Done<()>),
    /// Send the signals of a ring there from now on.
    SetCall(u16, Option<EventCounter>, Done<()>),
    /// Stop serving a ring; the answer is its position, once all its requests are answered.
    Stop(u16, Done<u16>),
    /// The frontend's channel for notices of changes.
    Channel(UnixStream),
    /// The frontend has gone; the answer is its memory, once all of its requests have ended.
    Went(Option<String>, Done<Mapped>),
}

/// A frontend.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// Its connection, to end it.
    stream: UnixStream,
    cred: PeerCred,
}

/// A ring to serve.
#[derive(Debug)]
pub(crate) struct Start {
    ring: u16,
    layout: Layout,
    agreed: Agreed,
    features: u64,
    base: u16,
    /// And its memory.
    inflight: Option<(Inflight, Arc<Mapped>)>,
    is_enabled: bool,
    kick: EventCounter,
    call: Option<EventCounter>,
    error: Option<EventCounter>,
}

//! The interface of the reactor: operations, completions, ids and limits.

use crate::buffer::Span;
use crate::error::IoFailure;
use std::str::FromStr;
use std::time::Duration;

/// A device of the reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u16);

/// A connected socket of the reactor. A number is reused only after 65,536 sockets were closed in
/// its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId(pub u32);

/// A FUSE connection of the reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FuseId(pub u32);

/// A block device (ublk) that the reactor serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UblkId(pub u32);

/// An event counter of the reactor (an `eventfd`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId(pub u32);

/// A listening socket of the reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u32);

/// The engine to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EnginePreference {
    /// io_uring if it is available, otherwise psync, with a message.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// Threads and `ppoll`.
    Psync,
}

impl EnginePreference {
    /// The name that operators enter.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Psync => "psync",
        }
    }
}

impl FromStr for EnginePreference {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = [Self::Auto, Self::Uring, Self::Psync].into_iter().find(|engine| engine.name() == name);
        found.ok_or_else(|| "there is no such engine; one of auto, uring, psync".into())
    }
}

/// Limits of the reactor.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most memory of the buffer pool, in bytes.
    pub buffer_bytes_max: usize,
    /// Entries of the ring's submission queue: the number of steps that one system call submits.
    pub ring_entries: u32,
    /// Most device steps of each lane (see [`prefer_device`](crate::Reactor::prefer_device)) in the
    /// kernel's ring; more wait in memory, in order.
    pub in_flight_max: u32,
    /// Threads of the psync engine for each lane.
    pub psync_threads: u32,
    /// Threads with a ring each, in addition to the one that owns the reactor; psync has its own.
    pub io_threads: u32,
    /// I/O threads get work if the thread that owns the reactor is busy for this percentage of the
    /// time, and only as much as brings it below that; 0: they always get all of it.
    pub io_threads_busy_pct: u32,
    /// By how many steps of niceness the thread that creates the reactor was raised above others.
    /// Threads whose work no active client waits for are lowered by as many.
    pub raised_by: u32,
    /// Longest time that `wait` polls before it sleeps; the actual time is learned from the length
    /// of waits.
    pub spin: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            buffer_bytes_max: 512 << 20,
            ring_entries: 256,
            in_flight_max: 1024,
            psync_threads: 16,
            io_threads: 0,
            io_threads_busy_pct: 90,
            raised_by: 0,
            spin: Duration::ZERO,
        }
    }
}

/// An operation. Until it is reported, spans must stay allocated and, if the kernel writes them,
/// untouched.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// Reads from a device into the spans; reports the bytes of all spans.
    Read {
        /// The device.
        device: DeviceId,
        /// First byte on the device; any value.
        offset: u64,
        /// Destination of the bytes, in order.
        spans: &'a [Span],
    },
    /// As `Read`; if it succeeds, [`Reactor::checksums`](crate::Reactor::checksums) gives a CRC-32C
    /// of each 4096 bytes of each span (the last can cover less), one span after the other.
    CheckedRead {
        /// The device.
        device: DeviceId,
        /// First byte on the device; any value.
        offset: u64,
        /// Destination of the bytes, in order.
        spans: &'a [Span],
        /// If set, the bytes are decrypted first; this is their place for the cipher.
        place: Option<u64>,
    },
    /// As `Write`, but first encrypts the bytes in place.
    EncryptedWrite {
        /// The device.
        device: DeviceId,
        /// First byte on the device; any value.
        offset: u64,
        /// Source of the bytes, in order; used by no other operation, and changed afterwards.
        spans: &'a [Span],
        /// Their place for the cipher.
        place: u64,
    },
    /// Writes the spans to a device; reports the bytes of all spans.
    Write {
        /// The device.
        device: DeviceId,
        /// First byte on the device; any value.
        offset: u64,
        /// Source of the bytes, in order.
        spans: &'a [Span],
    },
    /// Makes all writes reported so far durable; reports 0.
    Flush {
        /// The device.
        device: DeviceId,
    },
    /// Makes a range read as zeroes; reports 0. Not durable without a flush, like a write.
    Zero {
        /// The device.
        device: DeviceId,
        /// First byte on the device; any value.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Whether the space may be freed (a hole).
        may_unmap: bool,
    },
    /// Discards a range: a block device discards it, a file gets a hole. Its contents are then
    /// undefined. Reports 0, or the failure `EOPNOTSUPP` if the device or its file system does not
    /// support that.
    Discard {
        /// The device.
        device: DeviceId,
        /// First byte on the device, a multiple of 4096.
        offset: u64,
        /// Length in bytes, a multiple of 4096.
        len: u64,
    },
    /// Accepts one connection; reports the number of its [`SocketId`].
    Accept {
        /// The listener.
        listener: ListenerId,
    },
    /// Receives available bytes, at least one, at most the span; reports their number, 0 at the end
    /// of the stream.
    Recv {
        /// The socket.
        socket: SocketId,
        /// Destination of the bytes.
        span: Span,
    },
    /// Sends all bytes of the spans; reports their number.
    Send {
        /// The socket.
        socket: SocketId,
        /// The bytes to send, in order.
        spans: &'a [Span],
    },
    /// Takes one request from a FUSE connection; reports its bytes. Many may be posted at once. The
    /// failure `ENODEV` means that the mount is gone; `ENOENT` that the request was withdrawn
    /// meanwhile: submit again.
    FuseReceive {
        /// The connection.
        fuse: FuseId,
        /// Destination of the first bytes. With 80 of them (`fuse_in_header` and `fuse_write_in`)
        /// the payload of a write starts exactly where `data` does.
        header: Span,
        /// Destination of the rest; as long as the largest negotiated write.
        data: Span,
    },
    /// Answers a request of a FUSE connection with the bytes of all spans, as one message; reports
    /// their number. The failure `ENOENT` means that no process waits for the answer.
    FuseReply {
        /// The connection.
        fuse: FuseId,
        /// The answer, in order.
        spans: &'a [Span],
    },
    /// Answers the last request of an entry of a FUSE connection's queue, if there was one, and
    /// takes the next; reports 0 when there is one. The failures `ENOTCONN` and `ECONNABORTED` mean
    /// that the connection has ended. After any other failure the entry takes no more requests.
    FuseRing {
        /// The connection, after [`open_fuse_ring`](crate::Reactor::open_fuse_ring).
        fuse: FuseId,
        /// The queue.
        queue: u16,
        /// The request to answer; `None` registers a new entry.
        answered: Option<u64>,
        /// Memory for the heads of requests and answers. Always the same for an entry.
        head: Span,
        /// Memory for payloads; as long as the longest negotiated one. Always the same for an
        /// entry.
        payload: Span,
    },
    /// Answers the last request of a tag of a block device, if there was one, and takes the next;
    /// reports 0 when there is one. The failure `ENODEV` means that the device is gone, or has
    /// another server.
    UblkNext {
        /// The device.
        ublk: UblkId,
        /// The tag; one operation of it at a time.
        tag: u16,
        /// Bytes done, or minus an error number; `None` for the first request of the tag.
        answer: Option<i32>,
    },
    /// Waits until an event counter is above zero, and resets it to zero; reports 0. One at a time.
    TakeEvent {
        /// The counter.
        event: EventId,
    },
    /// Adds one to an event counter; reports 0. A full counter completes at once, or when the other
    /// process has taken it.
    Signal {
        /// The counter.
        event: EventId,
    },
}

/// The completion of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The token given to `submit`.
    pub token: u64,
    /// Bytes, or the number of the new [`SocketId`] for an accept; 0 if the operation is documented
    /// to report 0.
    pub result: Result<u32, IoFailure>,
    /// Position of a read's checksums.
    pub(crate) checksums: Checksums,
}

/// A part of the checksums of one `wait`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checksums {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// Why `wait` returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    /// Completions appended.
    pub completions: usize,
    /// The waker fired since the last `wait` returned.
    pub woken: bool,
}

/// Counters since the creation of the reactor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReactorStats {
    /// Steps submitted to the engine.
    pub steps: u64,
    /// Steps of these given to I/O threads.
    pub steps_given: u64,
    /// Device transfers continued because the kernel transferred only a part.
    pub short_transfers: u64,
    /// Reads that reached past the end of the device and were filled with zeroes.
    pub reads_past_end: u64,
    /// Device transfers that used the page cache although the device supports direct I/O.
    pub unaligned_transfers: u64,
    /// Writes held back until a neighbour in the same page completed.
    pub page_conflicts: u64,
    /// Device transfers restarted because the registration of their memory had been released.
    pub registrations_missed: u64,
    /// Zero operations that had to write zeroes.
    pub zeroes_written: u64,
}

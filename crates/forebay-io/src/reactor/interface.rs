//! The interface of the reactor: its operations, their completions, its numbers and its sizes.

use crate::buffer::Span;
use crate::error::IoFailure;
use std::str::FromStr;
use std::time::Duration;

/// A device of the reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u16);

/// A connected socket of the reactor. A number is not used again before 65,536 sockets were closed
/// in its place.
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

/// Which engine to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EnginePreference {
    /// io_uring where it works, otherwise psync, with a message.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// Threads and `ppoll`.
    Psync,
}

impl EnginePreference {
    /// The name as typed by people.
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

/// Sizes of the reactor.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most memory the buffer pool takes, in bytes.
    pub buffer_bytes_max: usize,
    /// Entries of the ring's submission queue: how many steps one system call hands over.
    pub ring_entries: u32,
    /// Device steps of each lane (see [`prefer_device`](crate::Reactor::prefer_device)) in the
    /// kernel's ring at once; more wait in memory, in order.
    pub in_flight_max: u32,
    /// Threads of the psync engine for each lane.
    pub psync_threads: u32,
    /// Threads with a ring each, beside the one that owns the reactor; psync has its own.
    pub io_threads: u32,
    /// They get work if the thread that owns the reactor is busy for so many percent of the time,
    /// and only as much as brings it below that; 0: they get everything always.
    pub io_threads_busy_pct: u32,
    /// The thread that makes the reactor was put above others by so many steps of niceness: threads
    /// that do what no client at work waits for are put back by as many.
    pub raised_by: u32,
    /// How long `wait` polls at most before it sleeps; how long it does is learned from how long
    /// waits take.
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

/// An operation. Spans must stay allocated and, where the kernel writes, be left alone until it is
/// reported.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// Reads from a device into the spans; reports the bytes of all spans.
    Read {
        /// The device.
        device: DeviceId,
        /// First byte on the device; any value.
        offset: u64,
        /// Where the bytes go, in order.
        spans: &'a [Span],
    },
    /// As `Read`; if it succeeds, [`Reactor::checksums`](crate::Reactor::checksums) gives a CRC-32C
    /// of each 4096 bytes of each span (the last may cover less), one span after the other.
    CheckedRead {
        /// The device.
        device: DeviceId,
        /// First byte on the device; any value.
        offset: u64,
        /// Where the bytes go, in order.
        spans: &'a [Span],
        /// Before that they are decrypted, as what lay at this place for the cipher.
        place: Option<u64>,
    },
    /// As `Write`, of what is encrypted where it lies, for this place, before it is written.
    EncryptedWrite {
        /// The device.
        device: DeviceId,
        /// First byte on the device; any value.
        offset: u64,
        /// Where the bytes come from, in order; they are nobody else's, and not the same
        /// afterwards.
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
        /// Where the bytes come from, in order.
        spans: &'a [Span],
    },
    /// Makes durable what was reported as written so far; reports 0.
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
        /// May the space be given back (a hole)?
        may_unmap: bool,
    },
    /// Says that a range of a device is of no use: a block device discards it, of a file it becomes
    /// a hole. What the range reads as then is open. Reports 0, or the failure `EOPNOTSUPP` if the
    /// device or its file system does not have that.
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
    /// Receives what is there, at least one byte, at most the span; reports the bytes, 0 at the end
    /// of the stream.
    Recv {
        /// The socket.
        socket: SocketId,
        /// Where the bytes go.
        span: Span,
    },
    /// Sends all bytes of the spans; reports their number.
    Send {
        /// The socket.
        socket: SocketId,
        /// What to send, in order.
        spans: &'a [Span],
    },
    /// Takes one request from a FUSE connection; reports its bytes. Many may be posted at once. The
    /// failure `ENODEV` means that the mount is gone; with `ENOENT` the request was withdrawn
    /// meanwhile: submit again.
    FuseReceive {
        /// The connection.
        fuse: FuseId,
        /// Where the first bytes go. With 80 of them (`fuse_in_header` and `fuse_write_in`) the
        /// payload of a write starts exactly where `data` does.
        header: Span,
        /// Where the rest goes; as long as the largest write that was agreed on.
        data: Span,
    },
    /// Answers a request of a FUSE connection with the bytes of all spans, as one message; reports
    /// their number. The failure `ENOENT` means that nobody waits for the answer any more.
    FuseReply {
        /// The connection.
        fuse: FuseId,
        /// The answer, in order.
        spans: &'a [Span],
    },
    /// Takes the next request of an entry of a FUSE connection's queue, after the answer to the
    /// last one; reports 0 when there is one. The failures `ENOTCONN` and `ECONNABORTED` mean that
    /// the connection is over. After any other the entry takes nothing more.
    FuseRing {
        /// The connection, after [`open_fuse_ring`](crate::Reactor::open_fuse_ring).
        fuse: FuseId,
        /// The queue.
        queue: u16,
        /// The number of the request that is answered; none registers a new entry.
        answered: Option<u64>,
        /// Where the heads of requests come and those of answers lie. Always the same for an entry.
        head: Span,
        /// Where payloads come and lie; as long as the longest agreed on. Always the same for an
        /// entry.
        payload: Span,
    },
    /// Takes the next request of a tag of a block device, after the answer to the last one; reports
    /// 0 when there is one. The failure `ENODEV` means that the device is gone, or has another
    /// server.
    UblkNext {
        /// The device.
        ublk: UblkId,
        /// The tag; one operation of it at a time.
        tag: u16,
        /// Bytes that were done, or minus an error number; none for the first request of the tag.
        answer: Option<i32>,
    },
    /// Waits until an event counter is above zero, and makes it zero; reports 0. One at a time.
    TakeEvent {
        /// The counter.
        event: EventId,
    },
    /// Adds one to an event counter; reports 0. Where the counter is full that is so at once, or
    /// when the other process has taken it.
    Signal {
        /// The counter.
        event: EventId,
    },
}

/// The end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The token given to `submit`.
    pub token: u64,
    /// Bytes, or the number of the new [`SocketId`] for an accept; 0 where the operation says so.
    pub result: Result<u32, IoFailure>,
    /// Where the checksums of a read lie.
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

/// Counts since the reactor was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReactorStats {
    /// Steps handed to the engine.
    pub steps: u64,
    /// Of those, given to I/O threads.
    pub steps_given: u64,
    /// Device transfers continued because the kernel did only a part.
    pub short_transfers: u64,
    /// Reads that reached past the end of the device and were filled with zeroes.
    pub reads_past_end: u64,
    /// Device transfers that went through the page cache although the device does direct I/O.
    pub unaligned_transfers: u64,
    /// Writes held back until a neighbour in the same page was done.
    pub page_conflicts: u64,
    /// Device transfers begun anew because the memory that they were to use was not registered any
    /// more.
    pub registrations_missed: u64,
    /// Zero operations that had to write zeroes.
    pub zeroes_written: u64,
}

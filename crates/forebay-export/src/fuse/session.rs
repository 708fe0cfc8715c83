//! One FUSE connection on the server side, as a state machine without I/O.
//!
//! Use
//! ```text
//! for each request received:
//!     match session.step(&first_bytes, received_bytes, &mut out) {
//!         Answered     => send `out` as one message
//!         Silent       => nothing to do
//!         Volume(v)    => start v.request; its payload, if it is a write, begins at byte WRITE_HEAD_BYTES. Later send
//!                         v.answer.ok(..) or .failed(..), for a read v.answer.data_header() and the data
//!         Store { .. } => a text for the tree's owner; reply later in the same way
//!         Interrupt    => the user of a request was interrupted: reply to that request with EINTR, if it can be aborted
//!         Destroyed    => the kernel has unmounted; no requests follow
//!     }
//! ```
//!
//! Invariants
//! - Every request that expects a reply gets exactly one: from `step`, or from its [`Answer`].
//! - `step` does not panic on any bytes.
//! - Every request for a volume passed [`request::validate`].
//! - At most [`Limits::handles_max`] files are open, and only handles returned by OPEN and OPENDIR
//!   are valid.
//!
//! Differences between a volume's file and a disk file: its size is fixed, so reads end and writes
//! stop at the end (`ENOSPC`), as on a block device; `O_TRUNC` is ignored, also as on a block
//! device.

use super::handles::{Handle, Handles, UserLimits};
use super::reply::{self, DirectoryEntry, Errno, InitOut};
use super::request::{Body, Header, InitIn, Malformed, SetAttributesIn, TransferIn};
use super::tree::{Access, Change, Content, Tree};
use super::wire::{self, OUT_HEADER_BYTES, falloc, fopen, init, open, setattr};
use crate::request::{self, Admission, Bounds, ClientRequest, Operation, Refusal};

/// Limits on the work and memory that the kernel can cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The longest read or write: a multiple of a page, at most 1 MiB on usual kernels. Receive
    /// buffers must have room for it.
    pub payload_bytes_max: u32,
    /// Asynchronous requests that the kernel sends before the first reply.
    pub background_max: u16,
    /// Files and directories open at once.
    pub handles_max: usize,
    /// Limits of users other than root.
    pub user: UserLimits,
    /// The longest text that a client can write to a control file.
    pub text_bytes_max: u32,
    /// The longest read or write if the kernel agrees to send requests over io_uring, at most
    /// `payload_bytes_max`; 0 disables io_uring.
    pub ring_payload_bytes_max: u32,
}

/// The longest read or write of a volume's file.
pub const PAYLOAD_BYTES_MAX: u32 = 1 << 20;

impl Default for Limits {
    fn default() -> Self {
        Limits {
            payload_bytes_max: PAYLOAD_BYTES_MAX,
            background_max: 256,
            handles_max: 1 << 16,
            user: UserLimits::NONE,
            text_bytes_max: 64 << 10,
            ring_payload_bytes_max: 0,
        }
    }
}

/// Result of the INIT negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// Minor version of the interface.
    pub minor: u32,
    /// The longest write.
    pub write_bytes_max: u32,
    /// Requests come over io_uring once each queue has an entry.
    pub over_ring: bool,
}

/// Encodes the reply to a completed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The kernel's id of the request.
    pub unique: u64,
    form: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    /// Header and data.
    Data {
        length_bytes: u32,
    },
    /// Number of bytes written.
    Written {
        length_bytes: u32,
    },
}

impl Answer {
    /// Appends success: the whole reply, or for a read the part before the data.
    pub fn ok(&self, out: &mut Vec<u8>) {
        match self.form {
            Form::Plain => reply::done(out, self.unique),
            Form::Data { length_bytes } => {
                out.extend_from_slice(&reply::header(self.unique, 0, length_bytes as usize));
            }
            Form::Written { length_bytes } => reply::written(out, self.unique, length_bytes),
        }
    }

    /// Appends a failure.
    pub fn failed(&self, out: &mut Vec<u8>, errno: Errno) {
        reply::failed(out, self.unique, errno);
    }

    /// Longest reply without data.
    pub const BYTES_MAX: usize = OUT_HEADER_BYTES + wire::WRITE_OUT_BYTES;
}

/// The requesting process and user. Requests of the kernel itself, such as read-ahead, have process
/// 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group of the user.
    pub gid: u32,
    /// Process, by its number in the name space of the mount.
    pub pid: u32,
}

/// A request for a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeRequest {
    /// The volume's node in the tree.
    pub node: u64,
    /// The requesting process and user.
    pub caller: Caller,
    /// The request; never longer than [`Limits::payload_bytes_max`] if it has payload. A write may
    /// be shorter than its payload.
    pub request: ClientRequest,
    /// Its reply.
    pub answer: Answer,
}

/// Result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FuseStep {
    /// The reply is in the output.
    Answered,
    /// No reply is expected.
    Silent,
    /// To be served by a volume.
    Volume(VolumeRequest),
    /// A text written to a control file: the first `length_bytes` of the payload.
    Store {
        /// The file's node in the tree.
        node: u64,
        /// Length of the text.
        length_bytes: u32,
        /// Its reply.
        answer: Answer,
    },
    /// The user of a request was interrupted.
    Interrupt {
        /// The request.
        request: u64,
        /// This message. If the request is not known yet, the reply is [`Errno::TryAgain`];
        /// otherwise there is no reply.
        unique: u64,
    },
    /// The kernel has unmounted.
    Destroyed,
}

/// A connection and its tree.
#[derive(Debug)]
pub struct Session<T> {
    tree: T,
    limits: Limits,
    agreed: Option<Agreed>,
    handles: Handles,
}

impl<T: Tree> Session<T> {
    /// Creates a connection before INIT.
    pub fn new(tree: T, limits: Limits) -> Session<T> {
        let handles = Handles::new(limits.handles_max, limits.user);
        Session { tree, limits, agreed: None, handles }
    }

    /// Returns the tree.
    pub fn tree(&mut self) -> &mut T {
        &mut self.tree
    }

    /// Returns the limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns the number of open handles of volume files. Each is a handle of the kernel, which
    /// several processes may share (a loop device has one).
    pub fn open_volumes(&self) -> u64 {
        self.handles.volumes() as u64
    }

    /// Returns the result of the negotiation, after INIT.
    pub fn agreed(&self) -> Option<Agreed> {
        self.agreed
    }

    /// Handles one request of `received_bytes`, of which `bytes` is the beginning: all of it,
    /// except that for a WRITE the first [`wire::WRITE_HEAD_BYTES`] are enough. Appends the reply
    /// to `out` if it is available at once.
    ///
    /// [`Malformed::Length`] if the bytes are no request; the connection is unusable then.
    pub fn step(
        &mut self,
        bytes: &[u8],
        received_bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<FuseStep, Malformed> {
        let header = Header::decode(bytes, received_bytes)?;
        let body = bytes.get(wire::IN_HEADER_BYTES..).unwrap_or_default();
        let body = match header.decode_body(body) {
            Ok(body) => body,
            Err(_) if expects_no_answer(header.opcode) => return Ok(FuseStep::Silent),
            Err(_) => {
                reply::failed(out, header.unique, Errno::Invalid);
                return Ok(FuseStep::Answered);
            }
        };
        let before = out.len();
        Ok(match self.serve(&header, body, out) {
            Ok(step) => step,
            Err(errno) => {
                out.truncate(before);
                reply::failed(out, header.unique, errno);
                FuseStep::Answered
            }
        })
    }

    fn serve(&mut self, header: &Header, body: Body<'_>, out: &mut Vec<u8>) -> Result<FuseStep, Errno> {
        let (unique, node) = (header.unique, header.node);
        match body {
            Body::Init(offer) => return self.init(unique, &offer, out),
            _ if self.agreed.is_none() && !expects_no_answer(header.opcode) => return Err(Errno::Protocol),
            Body::Forget { count } => {
                self.tree.forget(node, count);
                return Ok(FuseStep::Silent);
            }
            Body::BatchForget(forgets) => {
                forgets.iter().for_each(|(node, count)| self.tree.forget(node, count));
                return Ok(FuseStep::Silent);
            }
            Body::Interrupt { unique: request } => return Ok(FuseStep::Interrupt { request, unique }),
            Body::Read(range) => return self.read(header, &range, out),
            Body::Write(range) => return self.write(header, &range, out),
            Body::Fsync { handle } => return self.fsync(header, handle, out),
            Body::Allocate { handle, offset_bytes, length_bytes, mode } => {
                return self.allocate(header, handle, (offset_bytes, length_bytes, mode), out);
            }
            Body::Destroy => {
                reply::done(out, unique);
                return Ok(FuseStep::Destroyed);
            }
            Body::Lookup { name } => {
                let found = self.tree.lookup(node, name)?;
                reply::entry(out, unique, found, &self.tree.attributes(found)?);
            }
            Body::GetAttributes => reply::attributes(out, unique, node, &self.tree.attributes(node)?),
            Body::SetAttributes(wanted) => self.set_attributes(unique, node, &wanted, out)?,
            Body::StatFs => {
                let (size_bytes, files) = self.tree.totals();
                reply::stat_fs(out, unique, size_bytes, files);
            }
            Body::Open { flags } => self.open(header, flags, out)?,
            Body::OpenDirectory => self.open_directory(header, out)?,
            Body::ReadDirectory(range) => self.read_directory(unique, &range, out)?,
            Body::Release { handle } | Body::ReleaseDirectory { handle } => {
                self.handles.release(handle)?;
                reply::done(out, unique);
            }
            Body::FsyncDirectory => reply::done(out, unique),
            // Closing a file needs no work, and must not wait for this server: a process may be
            // killed while the server is stopped. After this error the kernel sends no further
            // FLUSH.
            Body::Flush => return Err(Errno::NoSuchOperation),
            Body::Ioctl => return Err(Errno::NotATerminal),
            // The kernel checks permissions on this mount, so it does not send this.
            Body::Access | Body::Other => return Err(Errno::NoSuchOperation),
        }
        Ok(FuseStep::Answered)
    }

    fn init(&mut self, unique: u64, offer: &InitIn, out: &mut Vec<u8>) -> Result<FuseStep, Errno> {
        if offer.major > wire::MAJOR {
            reply::init_other_major(out, unique, wire::MAJOR, wire::MINOR_MAX);
            return Ok(FuseStep::Answered);
        }
        if offer.major < wire::MAJOR || offer.minor < wire::MINOR_MIN {
            return Err(Errno::Protocol);
        }
        let wanted =
            init::ASYNC_READ | init::BIG_WRITES | init::ASYNC_DIO | init::PARALLEL_DIROPS | init::MAX_PAGES;
        let offered = offer.flags2 & init::OVER_IO_URING != 0;
        let over_ring = offered && self.limits.ring_payload_bytes_max > 0;
        if over_ring {
            self.limits.payload_bytes_max =
                self.limits.payload_bytes_max.min(self.limits.ring_payload_bytes_max);
        }
        let (flags, flags2) =
            if over_ring { (wanted | init::EXTENDED, init::OVER_IO_URING) } else { (wanted, 0) };
        let pages = self.limits.payload_bytes_max / wire::PAGE_BYTES;
        let minor = offer.minor.min(wire::MINOR_MAX);
        let background = self.limits.background_max.max(1);
        let agreed = InitOut {
            major: wire::MAJOR,
            minor,
            readahead_bytes: offer.readahead_bytes,
            flags: offer.flags & flags,
            flags2,
            background_max: background,
            congestion_threshold: (background - background / 4).max(1),
            write_bytes_max: self.limits.payload_bytes_max,
            pages_max: u16::try_from(pages).unwrap_or(u16::MAX),
        };
        self.agreed = Some(Agreed { minor, write_bytes_max: agreed.write_bytes_max, over_ring });
        reply::init(out, unique, &agreed);
        Ok(FuseStep::Answered)
    }

    // --- attributes

    fn set_attributes(
        &mut self,
        unique: u64,
        node: u64,
        wanted: &SetAttributesIn,
        out: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let now = self.tree.attributes(node)?;
        let has = |field: u32| wanted.valid & field != 0;
        if has(setattr::SIZE) && wanted.size_bytes != now.size_bytes {
            // open(O_TRUNC) arrives as size 0 without a handle; truncate(2) to another size is
            // refused.
            let by_open = wanted.size_bytes == 0 && !has(setattr::FH);
            if now.directory || !by_open {
                return Err(Errno::NotPermitted);
            }
        }
        let change = Change {
            permissions: has(setattr::MODE).then_some((wanted.mode & 0o7777) as u16),
            uid: has(setattr::UID).then_some(wanted.uid),
            gid: has(setattr::GID).then_some(wanted.gid),
        };
        if !change.is_empty() {
            self.tree.change(node, change)?;
        }
        // Times are accepted and dropped: touch(1) and cp -p must not fail.
        reply::attributes(out, unique, node, &self.tree.attributes(node)?);
        Ok(())
    }

    // --- handles

    fn open(&mut self, header: &Header, flags: u32, out: &mut Vec<u8>) -> Result<(), Errno> {
        let mode = flags & open::ACCESS_MODE;
        let access = Access { read: mode != open::WRITE_ONLY, write: mode != open::READ_ONLY };
        let handle = match self.tree.open(header.node, access)? {
            Content::Volume => Handle::Volume { writable: access.write },
            Content::Text(text) => Handle::Text { text, access },
        };
        let handle = self.handles.keep(handle, header.uid)?;
        let flags = fopen::DIRECT_IO | fopen::NOFLUSH | fopen::PARALLEL_DIRECT_WRITES;
        reply::opened(out, header.unique, handle, flags);
        Ok(())
    }

    fn open_directory(&mut self, header: &Header, out: &mut Vec<u8>) -> Result<(), Errno> {
        let dots = [&b"."[..], b".."].map(|name| DirectoryEntry {
            node: header.node,
            directory: true,
            name: name.into(),
        });
        let mut entries = dots.to_vec();
        entries.extend(self.tree.list(header.node)?);
        let handle = self.handles.keep(Handle::Directory(entries), header.uid)?;
        reply::opened(out, header.unique, handle, 0);
        Ok(())
    }

    fn read_directory(&mut self, unique: u64, range: &TransferIn, out: &mut Vec<u8>) -> Result<(), Errno> {
        let Handle::Directory(entries) = self.handles.get(range.handle)? else {
            return Err(Errno::NotADirectory);
        };
        let length_max = range.length_bytes.min(self.limits.payload_bytes_max);
        reply::directory(out, unique, entries, range.offset_bytes, length_max);
        Ok(())
    }

    // --- data

    fn read(&mut self, header: &Header, range: &TransferIn, out: &mut Vec<u8>) -> Result<FuseStep, Errno> {
        let (unique, node) = (header.unique, header.node);
        match self.handles.get(range.handle)? {
            Handle::Volume { .. } => {
                let length_bytes = self.within(node, range.offset_bytes, u64::from(range.length_bytes))?;
                let length = u32::try_from(length_bytes).map_err(|_| Errno::Invalid)?;
                if length == 0 {
                    reply::data(out, unique, &[]);
                    return Ok(FuseStep::Answered);
                }
                let request = ClientRequest {
                    operation: Operation::Read,
                    offset_bytes: range.offset_bytes,
                    length_bytes,
                };
                let answer = Answer { unique, form: Form::Data { length_bytes: length } };
                self.admit(header, request, false, answer, out)
            }
            Handle::Text { text, access } if access.read => {
                let start = usize::try_from(range.offset_bytes).unwrap_or(usize::MAX).min(text.len());
                let end = start.saturating_add(range.length_bytes as usize).min(text.len());
                reply::data(out, unique, &text[start..end]);
                Ok(FuseStep::Answered)
            }
            Handle::Text { .. } => Err(Errno::BadHandle),
            Handle::Directory(_) => Err(Errno::IsADirectory),
        }
    }

    fn write(&mut self, header: &Header, range: &TransferIn, out: &mut Vec<u8>) -> Result<FuseStep, Errno> {
        let (unique, node) = (header.unique, header.node);
        match self.handles.get(range.handle)? {
            &Handle::Volume { writable } => {
                let length_bytes = self.within(node, range.offset_bytes, u64::from(range.length_bytes))?;
                let length = u32::try_from(length_bytes).map_err(|_| Errno::Invalid)?;
                if length == 0 && range.length_bytes > 0 {
                    return Err(Errno::NoSpace);
                }
                let fua = range.open_flags & open::DSYNC != 0;
                let operation = Operation::Write { fua };
                let request = ClientRequest { operation, offset_bytes: range.offset_bytes, length_bytes };
                let answer = Answer { unique, form: Form::Written { length_bytes: length } };
                self.admit(header, request, writable, answer, out)
            }
            Handle::Text { access, .. } if access.write => {
                let length_bytes = range.length_bytes;
                if length_bytes > self.limits.text_bytes_max {
                    return Err(Errno::TooLarge);
                }
                let answer = Answer { unique, form: Form::Written { length_bytes } };
                Ok(FuseStep::Store { node, length_bytes, answer })
            }
            Handle::Text { .. } => Err(Errno::BadHandle),
            Handle::Directory(_) => Err(Errno::IsADirectory),
        }
    }

    fn fsync(&mut self, header: &Header, handle: u64, out: &mut Vec<u8>) -> Result<FuseStep, Errno> {
        let unique = header.unique;
        match self.handles.get(handle)? {
            Handle::Volume { .. } => {
                let request = ClientRequest { operation: Operation::Flush, offset_bytes: 0, length_bytes: 0 };
                self.admit(header, request, false, Answer { unique, form: Form::Plain }, out)
            }
            _ => {
                reply::done(out, unique);
                Ok(FuseStep::Answered)
            }
        }
    }

    /// Serves `fallocate(2)`: punching a hole and zeroing write zeroes; reserving space needs no
    /// work.
    fn allocate(
        &mut self,
        header: &Header,
        handle: u64,
        (offset_bytes, length_bytes, mode): (u64, u64, u32),
        out: &mut Vec<u8>,
    ) -> Result<FuseStep, Errno> {
        let &Handle::Volume { writable } = self.handles.get(handle)? else { return Err(Errno::NotSupported) };
        let no_hole = match mode & !falloc::KEEP_SIZE {
            0 => None,
            falloc::PUNCH_HOLE => Some(false),
            falloc::ZERO_RANGE => Some(true),
            _ => return Err(Errno::NotSupported),
        };
        let inside = self.within(header.node, offset_bytes, length_bytes)?;
        if inside < length_bytes && mode & falloc::KEEP_SIZE == 0 {
            return Err(Errno::NoSpace); // the file would have to grow
        }
        let answer = Answer { unique: header.unique, form: Form::Plain };
        let Some(no_hole) = no_hole.filter(|_| inside > 0) else {
            answer.ok(out);
            return Ok(FuseStep::Answered);
        };
        let operation = Operation::WriteZeroes { fua: false, no_hole, fast_only: false };
        self.admit(
            header,
            ClientRequest { operation, offset_bytes, length_bytes: inside },
            writable,
            answer,
            out,
        )
    }

    /// Returns the part of a range that is inside the volume.
    fn within(&mut self, node: u64, offset_bytes: u64, length_bytes: u64) -> Result<u64, Errno> {
        let size_bytes = self.tree.attributes(node)?.size_bytes;
        Ok(size_bytes.saturating_sub(offset_bytes).min(length_bytes))
    }

    /// Checks a request.
    fn admit(
        &mut self,
        header: &Header,
        request: ClientRequest,
        writable: bool,
        answer: Answer,
        out: &mut Vec<u8>,
    ) -> Result<FuseStep, Errno> {
        let bounds = Bounds {
            size_bytes: self.tree.attributes(header.node)?.size_bytes,
            read_only: !writable,
            payload_bytes_max: self.limits.payload_bytes_max,
        };
        match request::validate(&request, &bounds) {
            Ok(Admission::Serve) => {
                let Header { node, uid, gid, pid, .. } = *header;
                let caller = Caller { uid, gid, pid };
                Ok(FuseStep::Volume(VolumeRequest { node, caller, request, answer }))
            }
            Ok(Admission::Nothing) => {
                answer.ok(out);
                Ok(FuseStep::Answered)
            }
            Err(Refusal::ReadOnly) => Err(Errno::ReadOnly),
            Err(Refusal::PastEnd { .. }) => Err(Errno::NoSpace),
            Err(_) => Err(Errno::Invalid),
        }
    }
}

fn expects_no_answer(opcode: u32) -> bool {
    use wire::opcode as op;
    matches!(opcode, op::FORGET | op::BATCH_FORGET | op::INTERRUPT)
}

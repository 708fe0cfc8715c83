//! The engine with modelled devices in virtual time: for figures, not for faults (that is
//! [`forebay_sim::world`]).
//!
//! All data is zeroes, so only time is simulated. A run is deterministic. The caller submits
//! requests, lets time pass with [`Machine::step`] and takes the replies.

use forebay_core::{
    Action, Attachment, BufId, Device, DeviceFailure, Engine, EngineConfig, FormatParams, IoAction,
    OnBackingChange, OpId, OwnerAction, Request, RequestId, RequestKind, Status, Treatment, VolumeSettings,
    format_cache,
};
use forebay_format::checkpoint::{BackingRecord, VolumeEntry};
use forebay_format::{BLOCK_BYTES, CacheUuid, Geometry, VolumeId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Time until a failing disk reports an error, in nanoseconds.
const FAILURE_NS: u64 = 5_000_000;

/// An operation of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskOp {
    /// Read.
    Read,
    /// Write, also of zeroes.
    Write,
    /// Flush; offset and length are 0.
    Flush,
}

/// A change of bytes of the cache device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheChange {
    /// A write.
    Write {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// A discard: the bytes no longer count.
    Discard {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
}

/// A model of a disk.
pub trait Disk {
    /// Submits a request; [`Disk::advance`] returns `id` at its completion.
    fn submit(&mut self, now: u64, id: u64, op: DiskOp, offset: u64, len: u64);
    /// Returns the time of the next completion.
    fn next_event(&self) -> Option<u64>;
    /// Lets time pass and appends the numbers of completed requests, in order.
    fn advance(&mut self, now: u64, done: &mut Vec<u64>);
}

/// Times of the cache device.
#[derive(Clone, Copy, Debug)]
pub struct Flash {
    /// Latency of an operation, regardless of concurrency.
    pub op_ns: u64,
    /// Added per block.
    pub block_ns: u64,
    /// Added per operation, where the device is shared: limits operations per second.
    pub each_ns: u64,
    /// Time of a flush.
    pub flush_ns: u64,
    /// The blocks of all operations pass one after the other (a bandwidth), not in parallel.
    pub shared: bool,
}

/// The parts of a machine.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Size of the cache device.
    pub cache_bytes: u64,
    /// Blocks of a segment; `None`: as the size suggests.
    pub segment_blocks: Option<u32>,
    /// Size of each volume.
    pub volume_bytes: u64,
    /// Settings of the volumes.
    pub settings: VolumeSettings,
    /// Settings of the engine.
    pub engine: EngineConfig,
    /// The cache device.
    pub flash: Flash,
}

/// An answered request.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    /// Its number.
    pub id: u64,
    /// Whether it was a read.
    pub is_read: bool,
    /// Its latency, in nanoseconds.
    pub took: u64,
}

/// An engine, its cache device, and a disk for each volume.
pub struct Machine<D> {
    /// The engine.
    pub engine: Engine,
    /// Virtual time, in nanoseconds.
    pub now: u64,
    /// The disks.
    pub disks: Vec<D>,
    /// The first disk fails every write.
    pub failing: bool,
    /// Blocks written to disks.
    pub backing_blocks: u64,
    /// Every write to the cache device and every discard, in order of their starts, if not `None`.
    /// The reader empties it.
    pub cache_changes: Option<Vec<CacheChange>>,
    flash: Flash,
    flash_free: u64,
    cache: BTreeMap<u64, Vec<u8>>,
    done: BinaryHeap<Reverse<(u64, u64, u32, bool)>>,
    lengths: BTreeMap<u32, (u64, bool)>,
    meta: BTreeMap<u32, (u64, u32)>,
    pushed: u64,
    open: BTreeMap<u64, (u64, bool)>,
    replies: Vec<Reply>,
    next_request: u64,
    zero_crc: u32,
    crcs: Vec<u32>,
}

impl<D: Disk> Machine<D> {
    /// Creates a machine with a new cache in front of the disks, open and ready.
    ///
    /// # Panics
    /// Panics if the layout is illegal, or the engine does not open the cache.
    #[must_use]
    pub fn new(setup: &Setup, disks: Vec<D>) -> Self {
        let volumes = 0..disks.len() as u16;
        let backing = |volume: u16| BackingRecord {
            kind: 1,
            size_bytes: setup.volume_bytes,
            unique: [1, u64::from(volume)],
            stamp_ns: None,
            samples: Vec::new(),
        };
        let entry = |volume: u16| VolumeEntry {
            id: VolumeId(volume),
            mode: setup.settings.mode,
            name: format!("volume-{volume}"),
            size_bytes: setup.volume_bytes,
            flush_epoch: 0,
            uuid: [volume as u8 + 1; 16],
            backing: backing(volume),
        };
        let params = FormatParams {
            geometry: Geometry::for_device(setup.cache_bytes, setup.segment_blocks).expect("a legal layout"),
            members: forebay_format::Members::default(),
            uuid: CacheUuid([7; 16]),
            encryption: None,
            volumes: volumes.clone().map(entry).collect(),
            created_unix_s: 0,
            written_by: "machine".into(),
        };
        let cache = format_cache(&params).expect("a legal layout").into_iter().collect();
        let attachment = |volume: u16| Attachment {
            volume: VolumeId(volume),
            settings: setup.settings,
            size_bytes: setup.volume_bytes,
            backing: backing(volume),
            backing_sector_bytes: 512,
            on_change: OnBackingChange::Refuse,
            suspicion: forebay_core::Suspicion::None,
        };
        let attachments = volumes.map(attachment).collect();
        let mut machine = Self {
            engine: Engine::open(setup.engine.clone(), setup.cache_bytes, attachments, 0),
            now: 0,
            disks,
            failing: false,
            backing_blocks: 0,
            cache_changes: None,
            flash: setup.flash,
            flash_free: 0,
            cache,
            done: BinaryHeap::new(),
            lengths: BTreeMap::new(),
            meta: BTreeMap::new(),
            pushed: 0,
            open: BTreeMap::new(),
            replies: Vec::new(),
            next_request: 0,
            zero_crc: forebay_format::checksum(&[0; BLOCK_BYTES]),
            crcs: Vec::new(),
        };
        machine.pump();
        while machine.engine.status() == Status::Opening {
            assert!(machine.step(u64::MAX, None), "nothing goes on, and the cache is not open");
        }
        assert_eq!(machine.engine.status(), Status::Ready);
        machine
    }

    /// Submits a request of one block; returns its number.
    pub fn submit(&mut self, volume: VolumeId, kind: RequestKind, block: u64, treatment: Treatment) -> u64 {
        self.submit_blocks(volume, kind, block, 1, treatment)
    }

    /// Submits a request of this many blocks; returns its number.
    pub fn submit_blocks(
        &mut self,
        volume: VolumeId,
        kind: RequestKind,
        block: u64,
        blocks: u32,
        treatment: Treatment,
    ) -> u64 {
        let crcs = if kind == RequestKind::Read { 0 } else { blocks as usize };
        self.crcs.resize(self.crcs.len().max(crcs), self.zero_crc);
        let id = self.next_request;
        self.next_request += 1;
        self.open.insert(id, (self.now, kind == RequestKind::Read));
        let request = Request {
            id: RequestId(id),
            volume,
            kind,
            offset: block * BLOCK,
            len: u64::from(blocks) * BLOCK,
            buf: Some(BufId((id % 1_000_000) as u32)),
            treatment,
            block_crcs: &self.crcs[..crcs],
        };
        self.engine.submit(self.now, request);
        id
    }

    /// Returns the number of requests in flight.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Takes the replies since the last call.
    pub fn take_replies(&mut self, into: &mut Vec<Reply>) {
        into.clear();
        core::mem::swap(into, &mut self.replies);
    }

    /// Lets the next event before `end` happen; the caller's own next event is at `own`.
    pub fn step(&mut self, end: u64, own: Option<u64>) -> bool {
        let done = self.done.peek().map(|Reverse((at, ..))| *at);
        let times = [own, done, self.engine.next_deadline()].into_iter().flatten();
        let next = times.chain(self.disks.iter().filter_map(Disk::next_event)).min();
        let Some(next) = next.filter(|next| *next < end) else { return false };
        self.now = self.now.max(next);
        let mut ended = Vec::new();
        for disk in &mut self.disks {
            disk.advance(self.now, &mut ended);
        }
        for op in ended {
            self.complete(op as u32, true);
        }
        while let Some(Reverse((at, _, op, ok))) = self.done.peek().copied() {
            if at > self.now {
                break;
            }
            self.done.pop();
            self.complete(op, ok);
        }
        self.tick();
        true
    }

    /// Informs the engine of the time.
    pub fn tick(&mut self) {
        self.engine.tick(self.now);
        self.pump();
    }

    fn complete(&mut self, op: u32, ok: bool) {
        if let Some((offset, len)) = self.meta.remove(&op) {
            let bytes = self.metadata(offset, len);
            self.engine.complete_meta(self.now, OpId(op), Ok(&bytes));
        } else {
            let (len, is_backing_write) = self.lengths.remove(&op).unwrap_or_default();
            self.backing_blocks += if is_backing_write && ok { len / BLOCK } else { 0 };
            let blocks = len.div_ceil(BLOCK) as usize;
            self.crcs.resize(self.crcs.len().max(blocks), self.zero_crc);
            let result = if ok { Ok(()) } else { Err(DeviceFailure::Failed) };
            self.engine.complete(self.now, OpId(op), result, &self.crcs[..blocks]);
        }
        self.pump();
    }

    fn metadata(&self, offset: u64, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        for (at, piece) in self.cache.range(..offset + u64::from(len)) {
            let end = at + piece.len() as u64;
            if end > offset {
                let (from, to) = ((*at).max(offset), end.min(offset + u64::from(len)));
                bytes[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&piece[(from - at) as usize..(to - at) as usize]);
            }
        }
        bytes
    }

    /// Performs the actions of the engine.
    pub fn pump(&mut self) {
        while let Some(action) = self.engine.next_action() {
            match action {
                Action::Io(action) => self.perform(action),
                Action::Owner(action) => self.handle(action),
            }
        }
    }

    fn perform(&mut self, action: IoAction) {
        match action {
            IoAction::Read { op, device, offset, len, .. } => {
                self.start(op, device, DiskOp::Read, offset, len.into());
            }
            IoAction::Write { op, device, offset, len } => {
                self.start(op, device, DiskOp::Write, offset, len.into());
            }
            IoAction::ReadMeta { op, offset, len } => {
                self.meta.insert(op.0, (offset, len));
                self.later(op.0, self.flash.op_ns, true);
            }
            IoAction::WriteMeta { op, offset } => {
                let bytes = self.engine.meta(op).to_vec();
                self.wrote(offset, bytes.len() as u64);
                self.cache.insert(offset, bytes);
                self.later(op.0, self.flash.op_ns, true);
            }
            IoAction::Flush { op, device: Device::Cache } => self.later(op.0, self.flash.flush_ns, true),
            IoAction::Flush { op, device: Device::Backing(VolumeId(disk)) } => {
                self.disks[usize::from(disk)].submit(self.now, op.0.into(), DiskOp::Flush, 0, 0);
            }
            IoAction::Zero { op, volume, offset, len, .. } => {
                self.start(op, Device::Backing(volume), DiskOp::Write, offset, len);
            }
            IoAction::DiscardSegment { op, offset, len } => {
                if let Some(changes) = &mut self.cache_changes {
                    changes.push(CacheChange::Discard { offset, len });
                }
                self.later(op.0, self.flash.op_ns, true);
            }
            IoAction::Crc { op, .. } => self.engine.complete(self.now, op, Ok(()), &[self.zero_crc]),
            IoAction::Copy { .. } | IoAction::FillZero { .. } | IoAction::FlushMember { .. } => {}
        }
    }

    fn handle(&mut self, action: OwnerAction) {
        match action {
            OwnerAction::Reply { request, result, .. } => {
                assert!(result.is_ok(), "no client sees an error");
                self.replied(request.0);
            }
            OwnerAction::Notice(_)
            | OwnerAction::VolumeQuiet { .. }
            | OwnerAction::Quiesced
            | OwnerAction::RecordLoss { .. }
            | OwnerAction::RecordOut { .. }
            | OwnerAction::Closed => {}
        }
    }

    fn start(&mut self, op: OpId, device: Device, kind: DiskOp, offset: u64, len: u64) {
        let backing_write = matches!(device, Device::Backing(_)) && kind == DiskOp::Write;
        self.lengths.insert(op.0, (len, backing_write));
        match device {
            Device::Cache => {
                if kind == DiskOp::Write {
                    self.wrote(offset, len);
                }
                let transfer = len / BLOCK * self.flash.block_ns + self.flash.each_ns;
                let begin = if self.flash.shared { self.flash_free.max(self.now) } else { self.now };
                self.flash_free = begin + transfer;
                self.later(op.0, begin - self.now + transfer + self.flash.op_ns, true);
            }
            Device::Backing(VolumeId(0)) if self.failing && kind == DiskOp::Write => {
                self.later(op.0, FAILURE_NS, false);
            }
            Device::Backing(VolumeId(disk)) => {
                self.disks[usize::from(disk)].submit(self.now, op.0.into(), kind, offset, len);
            }
        }
    }

    fn wrote(&mut self, offset: u64, len: u64) {
        if let Some(changes) = &mut self.cache_changes {
            changes.push(CacheChange::Write { offset, len });
        }
    }

    fn later(&mut self, op: u32, after: u64, ok: bool) {
        self.pushed += 1;
        self.done.push(Reverse((self.now + after, self.pushed, op, ok)));
    }

    fn replied(&mut self, id: u64) {
        if let Some((at, is_read)) = self.open.remove(&id) {
            self.replies.push(Reply { id, is_read, took: self.now - at });
        }
    }
}

//! An engine on devices that take no time and hold only zeroes, to measure the effect of policies
//! on a trace.
//!
//! Everything completes in the order in which it was started. There is no payload, so a trace of
//! millions of requests takes seconds; the simulator checks correctness, not the rig.
//!
//! It can also measure the cost of the engine. All calls of the engine go through [`Rig::ask`];
//! while [`Rig::count`] is on they are made inside of [`counted_by_callgrind`], and the bytes that
//! the engine has moved are summed. The owner itself allocates nothing for a request, so all
//! allocations are the engine's.
#![allow(dead_code, reason = "the examples, the benchmark and each test use a part")]

use forebay_core::{
    Action, Attachment, BufId, DetachHow, Device, DeviceFailure, Engine, EngineConfig, FormatParams,
    IoAction, MirrorDevices, Notice, OnBackingChange, OpId, OwnerAction, PoolSettings, REQUEST_BYTES_MAX,
    Request, RequestId, RequestKind, Status, Treatment, VolumeSettings, format_cache, format_mirrored,
};
use forebay_format::batch::{BatchHeader, Entry};
use forebay_format::checkpoint::{BackingRecord, VolumeEntry};
use forebay_format::{BLOCK_BYTES, CacheUuid, Geometry, Members, VolumeId};
use std::collections::BTreeMap;
use std::ops::Range;

/// CRC32C of 4096 zero bytes.
const ZERO_CRC: u32 = 0x98f9_4189;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Checksums of the blocks of the longest operation.
static ZERO_CRCS: [u32; REQUEST_BYTES_MAX as usize / BLOCK_BYTES] =
    [ZERO_CRC; REQUEST_BYTES_MAX as usize / BLOCK_BYTES];
/// Time between two requests.
const PACE_NS: u64 = 20_000;
/// Maximum number of turns of the owner's loop until everything that follows from some requests has
/// completed.
const TURNS_MAX: u32 = 100_000;
/// Requests in flight, by default.
const DEPTH: u64 = 64;

/// After this time no fill waits for others.
pub(crate) const GATHERED_NS: u64 = 300_000_000;

/// Bytes that the engine had its owner move while [`Rig::count`] was on.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Moved {
    /// Copied from buffer to buffer.
    pub(crate) copied: u64,
    /// Filled with zeroes in buffers.
    pub(crate) zeroed: u64,
    /// Read from the cache device, metadata included.
    pub(crate) cache_read: u64,
    /// Written to the cache device, headers and metadata included.
    pub(crate) cache_written: u64,
    /// Read from the backing store.
    pub(crate) backing_read: u64,
    /// Written to the backing store.
    pub(crate) backing_written: u64,
    /// Part of those that was zeroed there instead of written, with the space deallocated.
    pub(crate) backing_unmapped: u64,
}

/// `bench/instructions` has callgrind count the instructions in here, and no others: it knows this
/// function by its name.
#[inline(never)]
fn counted_by_callgrind<T>(work: impl FnOnce() -> T) -> T {
    // The code after the work keeps the call from becoming a jump, which would end the counting too
    // early.
    std::hint::black_box(work())
}

/// The fault of a block of the cache device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// A read of it returns other data than was written.
    Wrong,
    /// A read of it fails.
    Unreadable,
}

/// Result of an operation.
enum End {
    /// Success, with this number of checksums.
    Good(usize),
    /// Other data was read.
    Wrong(Vec<u32>),
    Failed,
    Unsupported,
}

/// Reaction of the cache device to discards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Discards {
    #[default]
    Taken,
    Failing,
    /// They never end, except by [`Rig::release`].
    Hanging,
    Unknown,
}

/// The engine and its devices.
pub(crate) struct Rig {
    /// The engine.
    pub(crate) engine: Engine,
    /// Blocks that the cache can hold.
    pub(crate) capacity: u64,
    /// Requests in flight: after this many, the rig waits until everything that follows from them
    /// has completed.
    pub(crate) depth: u64,
    /// Writes of metadata and headers are kept, so that the cache can be opened again.
    pub(crate) keeps: bool,
    /// Bytes moved while counting.
    pub(crate) moved: Moved,
    /// Offsets of the cache device at which data is damaged. Metadata is not.
    pub(crate) faults: BTreeMap<u64, Fault>,
    /// These blocks of the first volume are damaged wherever they are written.
    pub(crate) spoilt: Range<u64>,
    /// After the first number of writes to the cache device, the second number fail.
    pub(crate) failing_writes: (u32, u32),
    /// Number of reads of a backing store that fail next, and of writes.
    pub(crate) failing_backing_reads: u32,
    pub(crate) failing_backing_writes: u32,
    pub(crate) failing_backing_flushes: u32,
    /// Only metadata can be read from this member of a mirrored cache.
    pub(crate) unreadable_member: Option<usize>,
    /// The owner cannot record a failed member; and the times of the requests.
    pub(crate) refuses_notes: bool,
    pub(crate) asked_for_notes: Vec<u64>,
    /// Metadata in these bytes of the cache device is unreadable.
    pub(crate) unreadable_meta: Range<u64>,
    /// The next read of the cache device, or write of metadata to it, that begins at this offset
    /// hangs until [`Rig::release`].
    pub(crate) hangs: Option<u64>,
    /// The same for the next read of a backing store that begins there.
    pub(crate) hangs_backing: Option<u64>,
    /// Flushes of backing stores hang until [`Rig::release`].
    pub(crate) hangs_flushes: bool,
    /// Flushes of the cache device fail.
    pub(crate) unflushable: bool,
    /// Offset of the last read of data from the cache device.
    pub(crate) last_read: u64,
    /// Notices of the engine since they were last taken.
    pub(crate) notices: Vec<Notice>,
    /// Operations that have failed.
    pub(crate) failed: u64,
    /// Number of requests that failed; `None`: none may fail.
    pub(crate) errors: Option<u64>,
    /// Each answered request, and whether it succeeded, in that order, if enabled: the test that
    /// enables it empties it.
    pub(crate) replies: Option<Vec<(RequestId, bool)>>,
    /// Maximum number of slots and segments that one call of the engine looked at, see
    /// [`Engine::looked_at`], without the snapshot of a checkpoint, which looks at every slot once.
    pub(crate) longest: u64,
    /// The longest write of metadata, in bytes.
    pub(crate) longest_meta: usize,
    /// Offset and length in bytes of every write to the cache device, in the order of their start,
    /// if enabled: the test that enables it empties it.
    pub(crate) cache_writes: Option<Vec<(u64, u64)>>,
    /// Maximum number of blocks that one call of the engine evicted, if enabled.
    pub(crate) most_evicted: Option<u64>,
    config: EngineConfig,
    attachments: Vec<Attachment>,
    mirrored: bool,
    volume_blocks: u64,
    now: u64,
    made: u64,
    counting: bool,
    closed: bool,
    /// Metadata on the cache device, by block. Missing blocks are zeroes.
    meta: BTreeMap<u64, Vec<u8>>,
    /// Operations that hang.
    hung: Vec<(OpId, End)>,
    pub(crate) discards: Discards,
    /// Byte ranges whose discard was started.
    pub(crate) discarded: Vec<Range<u64>>,
    /// Operations that have completed, and the memory of the previous turn.
    done: Vec<(OpId, End)>,
    spare: Vec<(OpId, End)>,
}

impl Rig {
    /// A new cache of `segments` segments, with volumes of `volume_blocks` each.
    pub(crate) fn new(
        (segments, segment_blocks): (u32, u32),
        volume_blocks: u64,
        volumes: &[VolumeSettings],
        pool: PoolSettings,
    ) -> Self {
        let layout = |bytes| Geometry::for_device(bytes, Some(segment_blocks));
        let geometry = large_enough((segments, segment_blocks), layout);
        Self::build((geometry, false), volume_blocks, volumes, pool)
    }

    /// A new cache on a device of `bytes` bytes, with the daemon's layout.
    pub(crate) fn on_device(
        bytes: u64,
        volume_blocks: u64,
        volumes: &[VolumeSettings],
        pool: PoolSettings,
    ) -> Self {
        let geometry = Geometry::for_device(bytes, None).expect("the device is large enough");
        Self::build((geometry, false), volume_blocks, volumes, pool)
    }

    /// A new mirrored cache, with `columns` segments on each member.
    pub(crate) fn mirrored(
        (columns, segment_blocks): (u32, u32),
        volume_blocks: u64,
        volumes: &[VolumeSettings],
        pool: PoolSettings,
    ) -> Self {
        let layout = |bytes| Geometry::mirrored(bytes, Some(segment_blocks));
        let geometry = large_enough((2 * columns, segment_blocks), layout);
        Self::build((geometry, true), volume_blocks, volumes, pool)
    }

    fn build(
        (geometry, mirrored): (Geometry, bool),
        volume_blocks: u64,
        volumes: &[VolumeSettings],
        pool: PoolSettings,
    ) -> Self {
        let entry = |(at, settings): (usize, &VolumeSettings)| entry(at, volume_blocks, settings);
        let params = FormatParams {
            geometry,
            members: Members::default(),
            uuid: CacheUuid([7; 16]),
            encryption: None,
            volumes: volumes.iter().enumerate().map(entry).collect(),
            created_unix_s: 1_700_000_000,
            written_by: "rig".into(),
        };
        let attach = |(at, settings): (usize, &VolumeSettings)| attachment(at, volume_blocks, settings);
        let attachments: Vec<_> = volumes.iter().enumerate().map(attach).collect();
        let config = EngineConfig { pool, ..EngineConfig::default() };
        let mut rig = Self {
            engine: open(config.clone(), (geometry, mirrored), attachments.clone(), 1),
            mirrored,
            capacity: 0,
            depth: DEPTH,
            keeps: false,
            moved: Moved::default(),
            faults: BTreeMap::new(),
            spoilt: 0..0,
            failing_writes: (0, 0),
            failing_backing_reads: 0,
            failing_backing_writes: 0,
            failing_backing_flushes: 0,
            unreadable_member: None,
            refuses_notes: false,
            asked_for_notes: Vec::new(),
            unreadable_meta: 0..0,
            unflushable: false,
            hangs: None,
            hangs_backing: None,
            hangs_flushes: false,
            last_read: 0,
            notices: Vec::new(),
            failed: 0,
            errors: None,
            replies: None,
            longest: 0,
            most_evicted: None,
            longest_meta: 0,
            cache_writes: None,
            config,
            attachments,
            volume_blocks,
            now: 1,
            made: 0,
            counting: false,
            closed: false,
            meta: BTreeMap::new(),
            hung: Vec::new(),
            discards: Discards::default(),
            discarded: Vec::new(),
            done: Vec::new(),
            spare: Vec::new(),
        };
        let writes = if mirrored { format_mirrored(&params, [1, 2]) } else { format_cache(&params) };
        for (offset, bytes) in writes.expect("the parameters are legal") {
            rig.store(offset, &bytes);
        }
        rig.run();
        assert_eq!(rig.engine.status(), Status::Ready);
        rig.capacity = rig.engine.stats().capacity_blocks;
        rig
    }

    /// Starts or stops counting the engine's work.
    pub(crate) fn count(&mut self, counting: bool) {
        self.counting = counting;
    }

    /// Stops the engine in an orderly way.
    pub(crate) fn stop(&mut self) {
        self.run();
        self.ask(Engine::begin_shutdown);
        self.run();
        assert!(self.closed, "nothing keeps it from closing");
    }

    /// The same, if the stop has to wait.
    pub(crate) fn stop_within(&mut self, ns: u64) {
        self.run();
        self.ask(Engine::begin_shutdown);
        self.rest(ns);
        assert!(self.closed, "it closes within {ns} ns: {}", self.engine.describe());
    }

    /// Opens the cache in its current state, which is a kill if it was not stopped. Needs
    /// [`Rig::keeps`] from the start.
    pub(crate) fn reopen(&mut self) {
        assert_eq!(self.try_reopen(), Status::Ready);
    }

    /// The same, if the opening may be refused: returns the result.
    pub(crate) fn try_reopen(&mut self) -> Status {
        assert!(self.keeps, "there is something to open");
        self.done.clear();
        self.closed = false;
        let (config, attachments) = (self.config.clone(), self.attachments.clone());
        let (now, layout) = (self.now, (self.engine.geometry(), self.mirrored));
        self.engine = self.watch(|_| open(config, layout, attachments, now));
        self.run();
        self.engine.status()
    }

    /// Calls the engine, and counts the call if enabled.
    fn ask<T>(&mut self, what: impl FnOnce(&mut Engine, u64) -> T) -> T {
        let now = self.now;
        self.watch(|rig| what(&mut rig.engine, now))
    }

    fn watch<T>(&mut self, what: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.engine.looked_at();
        let evicted = self.most_evicted.map(|_| self.engine.stats().evicted_blocks);
        let outcome = if self.counting { counted_by_callgrind(|| what(self)) } else { what(self) };
        let looked_at = self.engine.looked_at().saturating_sub(before);
        let slots = u64::from(self.engine.geometry().slot_count());
        self.longest = self.longest.max(looked_at.checked_sub(slots).unwrap_or(looked_at));
        if let (Some(most), Some(evicted)) = (self.most_evicted, evicted) {
            self.most_evicted = Some(most.max(self.engine.stats().evicted_blocks - evicted));
        }
        outcome
    }

    /// Makes one request of whole blocks; after every [`Rig::depth`] requests waits until
    /// everything that follows from them has completed.
    pub(crate) fn request(
        &mut self,
        volume: u16,
        kind: RequestKind,
        block: u64,
        blocks: u64,
        treatment: Treatment,
    ) {
        self.request_bytes(volume, kind, (block * BLOCK, blocks * BLOCK), treatment);
    }

    /// The same, with offset and length in bytes.
    pub(crate) fn request_bytes(
        &mut self,
        volume: u16,
        kind: RequestKind,
        (offset, len): (u64, u64),
        treatment: Treatment,
    ) {
        self.now += PACE_NS;
        let blocks = (offset % BLOCK + len).div_ceil(BLOCK);
        let crcs = if matches!(kind, RequestKind::Write { .. }) { blocks as usize } else { 0 };
        let request = Request {
            id: RequestId(self.now),
            volume: VolumeId(volume),
            kind,
            offset,
            len,
            buf: Some(BufId(1)),
            treatment,
            block_crcs: &ZERO_CRCS[..crcs],
        };
        self.ask(|engine, now| engine.submit(now, request));
        self.made += 1;
        if self.made.is_multiple_of(self.depth) {
            self.run();
        }
    }

    /// Reads one block with the volume's settings.
    pub(crate) fn read(&mut self, volume: u16, block: u64) {
        self.request(volume, RequestKind::Read, block, 1, Treatment::Cache);
    }

    /// Writes one block with the volume's settings.
    pub(crate) fn write(&mut self, volume: u16, block: u64) {
        self.request(volume, RequestKind::Write { fua: false }, block, 1, Treatment::Cache);
    }

    /// Detaches a volume.
    pub(crate) fn detach(&mut self, volume: u16, how: DetachHow) {
        self.rest(10_000_000);
        self.engine.detach_volume(self.now, VolumeId(volume), how).expect("it can be detached");
        self.rest(1_000_000_000);
        assert!(self.engine.volume_stats(VolumeId(volume)).is_none(), "it is gone");
    }

    /// Attaches a volume: a new one, or one that was kept.
    pub(crate) fn attach(&mut self, volume: u16, settings: &VolumeSettings) {
        self.attach_backing(volume, settings, backing(self.volume_blocks).unique);
        assert!(self.engine.volume_stats(VolumeId(volume)).is_some(), "it is there");
    }

    /// The same, with a backing store of this identity; the engine may refuse it.
    pub(crate) fn attach_backing(&mut self, volume: u16, settings: &VolumeSettings, unique: [u64; 2]) {
        let entry = entry(volume.into(), self.volume_blocks, settings);
        let mut attachment = attachment(volume.into(), self.volume_blocks, settings);
        attachment.backing.unique = unique;
        self.engine.attach_volume(self.now, entry, attachment).expect("it can be attached");
        self.rest(1_000_000_000);
    }

    /// Removes segments from the end of the pool.
    pub(crate) fn shrink(&mut self, segments: u32) {
        let geometry = self.engine.geometry();
        let bytes = geometry.device_blocks * BLOCK - u64::from(segments) * geometry.segment_bytes();
        self.engine.resize_pool(self.now, bytes, self.engine.members()).expect("it can be smaller");
        self.rest(10_000_000_000);
        assert_eq!(self.engine.geometry().segment_count, geometry.segment_count - segments);
        self.capacity = self.engine.stats().capacity_blocks;
    }

    /// Completes the hanging operations.
    pub(crate) fn release(&mut self) {
        (self.hangs, self.hangs_flushes) = (None, false);
        self.done.append(&mut self.hung);
        self.run();
    }

    /// Starts the engine's pending actions. Nothing completes.
    pub(crate) fn start(&mut self) {
        while let Some(action) = self.ask(|engine, _| engine.next_action()) {
            self.perform(action);
        }
    }

    /// Lets time pass until nothing is due for `ns` nanoseconds.
    pub(crate) fn rest(&mut self, ns: u64) {
        self.run();
        let end = self.now + ns;
        while let Some(due) = self.engine.next_deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.ask(Engine::tick);
            self.run();
        }
        self.now = end;
        self.ask(Engine::tick);
        self.run();
    }

    /// Current time.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    fn run(&mut self) {
        for turn in 0.. {
            assert!(turn < TURNS_MAX, "this does not come to rest: {}", self.engine.describe());
            self.start();
            if self.done.is_empty() {
                break;
            }
            // All completed operations form one turn of the owner's loop.
            let mut turn = std::mem::replace(&mut self.done, std::mem::take(&mut self.spare));
            for (op, end) in turn.drain(..) {
                self.failed += u64::from(matches!(end, End::Failed));
                self.ask(|engine, now| match end {
                    End::Good(crcs) => engine.complete(now, op, Ok(()), &ZERO_CRCS[..crcs]),
                    End::Wrong(crcs) => engine.complete(now, op, Ok(()), &crcs),
                    End::Failed => engine.complete(now, op, Err(DeviceFailure::Failed), &[]),
                    End::Unsupported => engine.complete(now, op, Err(DeviceFailure::Unsupported), &[]),
                });
            }
            self.spare = turn;
        }
        if self.ask(|engine, _| engine.next_deadline()).is_some_and(|due| due <= self.now) {
            self.ask(Engine::tick);
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Io(action) => self.perform_io(action),
            Action::Owner(action) => self.handle(action),
        }
    }

    fn perform_io(&mut self, action: IoAction) {
        if self.counting {
            self.note(&action);
        }
        self.note_cache_write(&action);
        match action {
            IoAction::Read { op, device, offset, len, crc } => {
                let blocks = (len as usize).div_ceil(BLOCK_BYTES);
                let end = match device {
                    Device::Cache => self.read_cache(offset, blocks),
                    Device::Backing(_) if took_one(&mut self.failing_backing_reads) => End::Failed,
                    Device::Backing(_) => End::Good(if crc { blocks } else { 0 }),
                };
                let hangs = if device == Device::Cache { &mut self.hangs } else { &mut self.hangs_backing };
                if hangs.take_if(|at| *at == offset).is_some() { &mut self.hung } else { &mut self.done }
                    .push((op, end));
            }
            IoAction::ReadMeta { op, offset, len } => {
                let bytes = self.load(offset, len);
                let bad = &self.unreadable_meta;
                let fails = offset < bad.end && bad.start < offset + u64::from(len);
                let result = if fails { Err(DeviceFailure::Failed) } else { Ok(&bytes[..]) };
                self.ask(|engine, now| engine.complete_meta(now, op, result));
            }
            IoAction::Write { op, device: Device::Cache, .. } | IoAction::WriteMeta { op, .. }
                if !took_one(&mut self.failing_writes.0) && took_one(&mut self.failing_writes.1) =>
            {
                self.done.push((op, End::Failed));
            }
            IoAction::Write { op, device: Device::Backing(_), .. }
                if took_one(&mut self.failing_backing_writes) =>
            {
                self.done.push((op, End::Failed));
            }
            IoAction::Write { op, device, offset, len } => {
                if device == Device::Cache
                    && let Some(state) = self.engine.mirror_state()
                {
                    let member = self.engine.geometry().mirror_place(offset).0;
                    let counts = state.out.is_none_or(|out| usize::from(out) != member);
                    assert!(counts || state.rebuild.is_some(), "member {member} is out, and is written to");
                }
                if device == Device::Cache && !self.faults.is_empty() {
                    self.faults.retain(|at, _| *at < offset || *at >= offset + u64::from(len));
                }
                if device == Device::Cache && !self.spoilt.is_empty() {
                    self.spoil(op, offset);
                }
                if let Some(header) = self.engine.header(op).filter(|_| self.keeps).map(<[u8]>::to_vec) {
                    // Payload overwrites metadata of an earlier use.
                    let blocks = offset / BLOCK..(offset + u64::from(len)) / BLOCK;
                    self.meta.retain(|block, _| !blocks.contains(block));
                    self.store(offset, &header);
                }
                self.done.push((op, End::Good(0)));
            }
            IoAction::WriteMeta { op, offset } => {
                self.longest_meta = self.longest_meta.max(self.engine.meta(op).len());
                if self.keeps {
                    let bytes = self.engine.meta(op).to_vec();
                    self.store(offset, &bytes);
                }
                let hangs = self.hangs.take_if(|at| *at == offset).is_some();
                if hangs { &mut self.hung } else { &mut self.done }.push((op, End::Good(0)));
            }
            IoAction::Flush { op, device: Device::Backing(_) } if self.hangs_flushes => {
                self.hung.push((op, End::Good(0)));
            }
            IoAction::Flush { op, device: Device::Cache } if self.unflushable => {
                self.done.push((op, End::Failed));
            }
            IoAction::Flush { op, device: Device::Backing(_) }
                if took_one(&mut self.failing_backing_flushes) =>
            {
                self.done.push((op, End::Failed));
            }
            IoAction::Flush { op, .. } | IoAction::FlushMember { op, .. } | IoAction::Zero { op, .. } => {
                self.done.push((op, End::Good(0)))
            }
            IoAction::DiscardSegment { op, offset, len } => {
                self.discarded.push(offset..offset + len);
                match self.discards {
                    Discards::Taken => self.done.push((op, End::Good(0))),
                    Discards::Failing => self.done.push((op, End::Failed)),
                    Discards::Hanging => self.hung.push((op, End::Good(0))),
                    Discards::Unknown => self.done.push((op, End::Unsupported)),
                }
            }
            IoAction::Crc { op, .. } => self.ask(|engine, now| engine.complete(now, op, Ok(()), &[ZERO_CRC])),
            IoAction::Copy { .. } | IoAction::FillZero { .. } => {}
        }
    }

    fn handle(&mut self, action: OwnerAction) {
        match action {
            OwnerAction::VolumeQuiet { volume } => {
                let backing = backing(self.volume_blocks);
                self.engine.finish_detach(self.now, volume, backing).expect("it asked for this");
            }
            OwnerAction::Quiesced => {
                let table = self.engine.volume_table();
                let records: Vec<_> = table.into_iter().map(|entry| (entry.id, entry.backing)).collect();
                self.ask(|engine, now| engine.finish_shutdown(now, &records));
            }
            OwnerAction::Reply { request, result, .. } => {
                if let Some(replies) = &mut self.replies {
                    replies.push((request, result.is_ok()));
                }
                match &mut self.errors {
                    Some(errors) => *errors += u64::from(result.is_err()),
                    None => assert!(result.is_ok(), "nothing fails here: {result:?}"),
                }
            }
            OwnerAction::RecordLoss { ticket } => {
                self.ask(|engine, now| engine.loss_recorded(now, ticket, true));
            }
            OwnerAction::RecordOut { ticket, .. } => {
                self.asked_for_notes.push(self.now);
                let ok = !self.refuses_notes;
                self.ask(|engine, now| engine.member_recorded(now, ticket, ok));
            }
            OwnerAction::Closed => self.closed = true,
            OwnerAction::Notice(notice) => self.notices.push(notice),
        }
    }

    /// Damages the spoilt blocks of a batch that is written here.
    fn spoil(&mut self, op: OpId, offset: u64) {
        let mut entries = Vec::new();
        let header = self.engine.header(op).map(|header| BatchHeader::decode(header, &mut entries));
        assert!(matches!(header, None | Some(Ok(_))), "a header is written");
        let data = entries.iter().filter(|entry| entry.has_payload());
        for (at, entry) in (offset + BLOCK..).step_by(BLOCK_BYTES).zip(data) {
            if let Entry::Data { volume: VolumeId(0), block, .. } = entry
                && self.spoilt.contains(block)
            {
                self.faults.insert(at, Fault::Wrong);
            }
        }
    }

    fn read_cache(&mut self, offset: u64, blocks: usize) -> End {
        self.last_read = offset;
        if self
            .unreadable_member
            .is_some_and(|member| self.engine.geometry().mirror_place(offset).0 == member)
        {
            return End::Failed;
        }
        if self.faults.is_empty() {
            return End::Good(blocks);
        }
        let faults: Vec<_> = self.faults.range(offset..offset + blocks as u64 * BLOCK).collect();
        if faults.iter().any(|(_, fault)| **fault == Fault::Unreadable) {
            return End::Failed;
        }
        let mut crcs = ZERO_CRCS[..blocks].to_vec();
        faults.iter().for_each(|(at, _)| crcs[((**at - offset) / BLOCK) as usize] ^= 1);
        End::Wrong(crcs)
    }

    /// Offset of a cached block of a volume: reads the block.
    pub(crate) fn place_of(&mut self, volume: u16, block: u64) -> u64 {
        self.run();
        let reads = self.engine.stats().cache_reads;
        self.read(volume, block);
        self.run();
        assert_eq!(self.engine.stats().cache_reads, reads + 1, "it is cached, and nothing else happens");
        self.last_read
    }

    fn note_cache_write(&mut self, action: &IoAction) {
        let Some(writes) = &mut self.cache_writes else { return };
        match *action {
            IoAction::Write { device: Device::Cache, offset, len, .. } => writes.push((offset, len.into())),
            IoAction::WriteMeta { op, offset } => writes.push((offset, self.engine.meta(op).len() as u64)),
            IoAction::Write { device: Device::Backing(_), .. }
            | IoAction::Read { .. }
            | IoAction::ReadMeta { .. }
            | IoAction::Flush { .. }
            | IoAction::FlushMember { .. }
            | IoAction::Zero { .. }
            | IoAction::DiscardSegment { .. }
            | IoAction::Copy { .. }
            | IoAction::FillZero { .. }
            | IoAction::Crc { .. } => {}
        }
    }

    fn note(&mut self, action: &IoAction) {
        let moved = &mut self.moved;
        match *action {
            IoAction::Read { device: Device::Cache, len, .. } | IoAction::ReadMeta { len, .. } => {
                moved.cache_read += u64::from(len);
            }
            IoAction::Read { len, .. } => moved.backing_read += u64::from(len),
            IoAction::Write { device: Device::Cache, len, .. } => moved.cache_written += u64::from(len),
            IoAction::Write { len, .. } => moved.backing_written += u64::from(len),
            IoAction::WriteMeta { op, .. } => moved.cache_written += self.engine.meta(op).len() as u64,
            IoAction::Zero { len, may_unmap, .. } => {
                moved.backing_written += len;
                moved.backing_unmapped += if may_unmap { len } else { 0 };
            }
            IoAction::Copy { to, .. } => moved.copied += u64::from(to.len),
            IoAction::FillZero { span } => moved.zeroed += u64::from(span.len),
            IoAction::Flush { .. }
            | IoAction::FlushMember { .. }
            | IoAction::DiscardSegment { .. }
            | IoAction::Crc { .. } => {}
        }
    }

    /// Puts metadata on the cache device; `offset` is that of a block.
    pub(crate) fn store(&mut self, offset: u64, bytes: &[u8]) {
        for (at, piece) in bytes.chunks(BLOCK_BYTES).enumerate() {
            let mut block = piece.to_vec();
            block.resize(BLOCK_BYTES, 0);
            self.meta.insert(offset / BLOCK + at as u64, block);
        }
    }

    /// Returns metadata from the cache device.
    pub(crate) fn load(&self, offset: u64, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        let first = offset / BLOCK;
        for (block, stored) in self.meta.range(first..first + u64::from(len) / BLOCK) {
            let at = (block - first) as usize * BLOCK_BYTES;
            bytes[at..at + BLOCK_BYTES].copy_from_slice(stored);
        }
        bytes
    }
}

fn backing(volume_blocks: u64) -> BackingRecord {
    BackingRecord {
        kind: 1,
        size_bytes: volume_blocks * BLOCK,
        unique: [1, 2],
        stamp_ns: None,
        samples: Vec::new(),
    }
}

fn entry(at: usize, volume_blocks: u64, settings: &VolumeSettings) -> VolumeEntry {
    VolumeEntry {
        id: VolumeId(at as u16),
        mode: settings.mode,
        name: format!("v{at}"),
        size_bytes: volume_blocks * BLOCK,
        flush_epoch: 0,
        uuid: [at as u8 + 1; 16],
        backing: backing(volume_blocks),
    }
}

fn attachment(at: usize, volume_blocks: u64, settings: &VolumeSettings) -> Attachment {
    Attachment {
        volume: VolumeId(at as u16),
        settings: *settings,
        size_bytes: volume_blocks * BLOCK,
        backing: backing(volume_blocks),
        backing_sector_bytes: 512,
        on_change: OnBackingChange::Refuse,
        suspicion: forebay_core::Suspicion::None,
    }
}

fn open(
    config: EngineConfig,
    (geometry, mirrored): (Geometry, bool),
    attachments: Vec<Attachment>,
    now: u64,
) -> Engine {
    if mirrored {
        let devices = MirrorDevices { geometry, there: [true; 2] };
        return Engine::open_mirrored(config, devices, attachments, now);
    }
    Engine::open(config, geometry.device_blocks * BLOCK, attachments, now)
}

/// The smallest layout with at least this number of segments.
fn large_enough<E>(
    (segments, segment_blocks): (u32, u32),
    layout: impl Fn(u64) -> Result<Geometry, E>,
) -> Geometry {
    let mut bytes = u64::from(segments) * u64::from(segment_blocks) * BLOCK;
    loop {
        match layout(bytes) {
            Ok(geometry) if geometry.segment_count >= segments => return geometry,
            _ => bytes += u64::from(segment_blocks) * BLOCK,
        }
    }
}

/// Counts down; true if the count was not zero.
fn took_one(left: &mut u32) -> bool {
    let takes = *left > 0;
    *left -= u32::from(takes);
    takes
}

/// SplitMix64: the same traces everywhere.
pub(crate) struct Dice(pub u64);

impl Dice {
    /// The next number.
    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.word() % end
    }
}

/// Numbers below a bound, the small ones more often: the k-th in proportion to `1 / (k +
/// 1)^exponent`, and scattered.
pub(crate) struct Zipf {
    sums: Vec<f64>,
}

impl Zipf {
    /// The distribution over `0..count`.
    pub(crate) fn new(count: u64, exponent: f64) -> Self {
        let mut sum = 0.0;
        let sums = (0..count).map(|k| {
            sum += 1.0 / ((k + 1) as f64).powf(exponent);
            sum
        });
        Self { sums: sums.collect() }
    }

    /// Draws a number.
    pub(crate) fn draw(&self, dice: &mut Dice) -> u64 {
        let all = *self.sums.last().expect("a distribution over something");
        let at = (dice.word() >> 11) as f64 / (1_u64 << 53) as f64 * all;
        let rank = self.sums.partition_point(|sum| *sum < at) as u64;
        // An odd factor permutes the numbers below a power of two: neighbours in rank are not
        // neighbours on the volume. Numbers beyond the volume are permuted again.
        let count = self.sums.len() as u64;
        let next = |number: u64| number.wrapping_mul(0x9e37_79b1) % count.next_power_of_two();
        std::iter::successors(Some(next(rank)), |number| Some(next(*number)))
            .find(|number| *number < count)
            .expect("a permutation comes back to where it began")
    }
}

//! The engine between clients with a steady hand and an emulated 7200 rpm disk, in virtual time: for figures, not for
//! faults (that is the world of `forebay-sim` itself). All data is zeroes, so only time is simulated.
//!
//! Two volumes, each on a disk of its own ([`forebay_io::hdd::HddModel`], 1 GiB with the seeks of a whole disk); clients
//! use the first one, the second is for single requests of tests. The cache device takes 80 us and 2 us
//! a block, however much is in flight. A run is the same every time.

use forebay_core::{
    Action, Attachment, BufId, Device, DeviceFailure, Drain, Engine, EngineConfig, FormatParams, Limit, OpId,
    Request, RequestId, RequestKind, Status, Treatment, VolumeSettings, format_cache,
};
use forebay_format::checkpoint::{BackingRecord, VolumeEntry};
use forebay_format::{BLOCK_BYTES, CacheUuid, Geometry, VolumeId};
use forebay_io::hdd::{HddModel, HddOp};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Size of the volume and the disk.
pub(crate) const VOLUME_BYTES: u64 = 1 << 30;
/// Size of the cache device.
pub(crate) const CACHE_BYTES: u64 = 256 << 20;
pub(crate) const SECOND: u64 = 1_000_000_000;
const VOLUME: VolumeId = VolumeId(0);
/// Volumes, and disks.
const VOLUMES: u16 = 2;
const CACHE_OP_NS: u64 = 80_000;
const CACHE_BLOCK_NS: u64 = 2_000;
const CACHE_FLUSH_NS: u64 = 300_000;
/// Writes that an open-loop writer lets wait at most.
const WRITES_OPEN_MAX: u64 = 256;
/// What a failing disk takes to say so.
const FAILURE_NS: u64 = 5_000_000;

/// What clients do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    /// Writes of one random block, so many a second, whether or not earlier ones have been answered.
    pub(crate) writes_per_s: u64,
    /// Readers of random blocks that are not cached, each with one request at a time.
    pub(crate) readers: u32,
}

/// One second of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) at_s: u64,
    pub(crate) writes: u64,
    pub(crate) write_ns: Vec<u64>,
    pub(crate) reads: u64,
    pub(crate) read_ns: Vec<u64>,
    pub(crate) backing_blocks: u64,
    pub(crate) dirty_blocks: u64,
    pub(crate) oldest_age_ns: u64,
    pub(crate) limited_by: Limit,
    pub(crate) target: Option<u64>,
}

struct Open {
    at: u64,
    reads: bool,
}

/// The whole set-up.
pub(crate) struct Rig {
    pub(crate) engine: Engine,
    pub(crate) now: u64,
    pub(crate) load: Load,
    /// The first disk fails every write.
    pub(crate) failing: bool,
    pub(crate) samples: Vec<Sample>,
    disks: Vec<HddModel>,
    cache: BTreeMap<u64, Vec<u8>>,
    done: BinaryHeap<Reverse<(u64, u64, u32, bool)>>,
    lengths: BTreeMap<u32, (u64, bool)>,
    meta: BTreeMap<u32, (u64, u32)>,
    pushed: u64,
    open: BTreeMap<u64, Open>,
    next_request: u64,
    next_write: u64,
    seed: u64,
    current: Sample,
    zero_crc: u32,
}

impl Rig {
    /// A new cache in front of the disk.
    pub(crate) fn new(settings: VolumeSettings) -> Self {
        let geometry = Geometry::for_device(CACHE_BYTES, Some(256)).expect("a legal layout");
        let backing = |volume: u16| BackingRecord {
            kind: 1,
            size_bytes: VOLUME_BYTES,
            unique: [1, u64::from(volume)],
            stamp_ns: None,
            samples: Vec::new(),
        };
        let entry = |volume: u16| VolumeEntry {
            id: VolumeId(volume),
            mode: settings.mode,
            name: format!("pacing-{volume}"),
            size_bytes: VOLUME_BYTES,
            flush_epoch: 0,
            uuid: [volume as u8 + 1; 16],
            backing: backing(volume),
        };
        let params = FormatParams {
            geometry,
            members: forebay_format::Members::default(),
            uuid: CacheUuid([7; 16]),
            volumes: (0..VOLUMES).map(entry).collect(),
            created_unix_s: 0,
            written_by: "pacing".into(),
        };
        let cache = format_cache(&params).expect("a legal layout").into_iter().collect();
        let attachment = |volume: u16| Attachment {
            volume: VolumeId(volume),
            settings,
            size_bytes: VOLUME_BYTES,
            backing: backing(volume),
            backing_sector_bytes: 512,
            on_change: forebay_core::OnBackingChange::Refuse,
        };
        let attachments = (0..VOLUMES).map(attachment).collect();
        let config = EngineConfig { scratch_blocks: 8192, ..EngineConfig::default() };
        let mut rig = Self {
            engine: Engine::open(config, CACHE_BYTES, attachments, 0),
            now: 0,
            load: Load::default(),
            failing: false,
            samples: Vec::new(),
            disks: (0..VOLUMES).map(|_| HddModel::new(VOLUME_BYTES)).collect(),
            cache,
            done: BinaryHeap::new(),
            lengths: BTreeMap::new(),
            meta: BTreeMap::new(),
            pushed: 0,
            open: BTreeMap::new(),
            next_request: 0,
            next_write: 0,
            seed: 0x9e37_79b9,
            current: Sample::default(),
            zero_crc: forebay_format::checksum(&[0; BLOCK_BYTES]),
        };
        rig.pump();
        while rig.engine.status() == Status::Opening {
            rig.step(u64::MAX);
        }
        assert_eq!(rig.engine.status(), Status::Ready);
        let start = rig.now.next_multiple_of(SECOND);
        rig.run_until(start);
        rig.samples.clear();
        rig
    }

    pub(crate) fn set_drain(&mut self, drain: Drain) {
        self.engine.set_drain(self.now, VOLUME, drain);
        self.pump();
    }

    pub(crate) fn dirty_blocks(&self) -> u64 {
        self.engine.dirty_blocks(VOLUME)
    }

    /// Runs for so many seconds with a load.
    pub(crate) fn run(&mut self, load: Load, seconds: u64) {
        self.load = load;
        self.next_write = self.next_write.max(self.now);
        for _ in self.open.values().filter(|open| open.reads).count()..load.readers as usize {
            self.read();
        }
        for _ in 0..seconds {
            let end = self.now / SECOND * SECOND + SECOND;
            self.run_until(end);
        }
    }

    /// Runs until a time and takes a sample.
    pub(crate) fn run_until(&mut self, end: u64) {
        while self.step(end) {}
        self.now = end;
        self.engine.tick(self.now);
        self.pump();
        let report = self.engine.destage_report(VOLUME).expect("attached");
        let mut sample = std::mem::take(&mut self.current);
        sample.at_s = end / SECOND;
        sample.dirty_blocks = report.dirty_blocks;
        sample.oldest_age_ns = report.oldest_dirty_age;
        (sample.limited_by, sample.target) = (report.limited_by, report.target_blocks_per_s);
        self.samples.push(sample);
    }

    /// Lets the next thing happen before `end`.
    fn step(&mut self, end: u64) -> bool {
        let write = (self.load.writes_per_s > 0).then_some(self.next_write);
        let done = self.done.peek().map(|Reverse((at, ..))| *at);
        let times = [write, done, self.engine.next_deadline()].into_iter().flatten();
        let next = times.chain(self.disks.iter().filter_map(HddModel::next_event)).min();
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
        if write.is_some_and(|at| at <= self.now) {
            self.next_write += SECOND / self.load.writes_per_s;
            self.write();
        }
        self.engine.tick(self.now);
        self.pump();
        true
    }

    fn complete(&mut self, op: u32, ok: bool) {
        if let Some((offset, len)) = self.meta.remove(&op) {
            let mut bytes = vec![0; len as usize];
            for (at, piece) in self.cache.range(..offset + u64::from(len)) {
                let end = at + piece.len() as u64;
                if end > offset {
                    let (from, to) = ((*at).max(offset), end.min(offset + u64::from(len)));
                    bytes[(from - offset) as usize..(to - offset) as usize]
                        .copy_from_slice(&piece[(from - at) as usize..(to - at) as usize]);
                }
            }
            self.engine.complete_meta(self.now, OpId(op), Ok(&bytes));
        } else {
            let (len, is_destage) = self.lengths.remove(&op).unwrap_or_default();
            self.current.backing_blocks += if is_destage && ok { len / BLOCK } else { 0 };
            let crcs = vec![self.zero_crc; len.div_ceil(BLOCK) as usize];
            self.engine.complete(self.now, OpId(op), if ok { Ok(()) } else { Err(DeviceFailure) }, &crcs);
        }
        self.pump();
    }

    fn pump(&mut self) {
        while let Some(action) = self.engine.next_action() {
            match action {
                Action::Read { op, device, offset, len, .. } => {
                    self.start(op, device, HddOp::Read, offset, len.into())
                }
                Action::Write { op, device, offset, len } => {
                    self.start(op, device, HddOp::Write, offset, len.into())
                }
                Action::ReadMeta { op, offset, len } => {
                    self.meta.insert(op.0, (offset, len));
                    self.later(op.0, CACHE_OP_NS, true);
                }
                Action::WriteMeta { op, offset } => {
                    let bytes = self.engine.meta(op).to_vec();
                    self.cache.insert(offset, bytes);
                    self.later(op.0, CACHE_OP_NS, true);
                }
                Action::Flush { op, device: Device::Cache } => self.later(op.0, CACHE_FLUSH_NS, true),
                Action::Flush { op, device: Device::Backing(VolumeId(disk)) } => {
                    self.disks[usize::from(disk)].submit(self.now, op.0.into(), HddOp::Flush, 0, 0);
                }
                Action::Zero { op, volume, offset, len, .. } => {
                    self.start(op, Device::Backing(volume), HddOp::Write, offset, len)
                }
                Action::Crc { op, .. } => self.engine.complete(self.now, op, Ok(()), &[self.zero_crc]),
                Action::Reply { request, result, .. } => {
                    assert!(result.is_ok(), "no client sees an error");
                    self.replied(request.0);
                }
                Action::Copy { .. }
                | Action::FillZero { .. }
                | Action::Notice(_)
                | Action::VolumeQuiet { .. }
                | Action::Quiesced
                | Action::Closed => {}
            }
        }
    }

    fn start(&mut self, op: OpId, device: Device, kind: HddOp, offset: u64, len: u64) {
        let destage = matches!(device, Device::Backing(_)) && kind == HddOp::Write;
        self.lengths.insert(op.0, (len, destage));
        match device {
            Device::Cache => self.later(op.0, CACHE_OP_NS + len / BLOCK * CACHE_BLOCK_NS, true),
            Device::Backing(VOLUME) if self.failing && kind == HddOp::Write => {
                self.later(op.0, FAILURE_NS, false)
            }
            Device::Backing(VolumeId(disk)) => {
                self.disks[usize::from(disk)].submit(self.now, op.0.into(), kind, offset, len)
            }
        }
    }

    fn later(&mut self, op: u32, after: u64, ok: bool) {
        self.pushed += 1;
        self.done.push(Reverse((self.now + after, self.pushed, op, ok)));
    }

    fn replied(&mut self, id: u64) {
        let Some(open) = self.open.remove(&id) else { return };
        let took = self.now - open.at;
        if open.reads {
            self.current.reads += 1;
            self.current.read_ns.push(took);
            let reading = self.open.values().filter(|open| open.reads).count();
            if reading < self.load.readers as usize {
                self.read();
            }
        } else {
            self.current.writes += 1;
            self.current.write_ns.push(took);
        }
    }

    fn random_block(&mut self) -> u64 {
        // Knuth's MMIX generator; its high bits are good enough for places on a disk.
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % (VOLUME_BYTES / BLOCK)
    }

    fn write(&mut self) {
        if (self.open.len() as u64) < WRITES_OPEN_MAX {
            let block = self.random_block();
            self.write_block(VOLUME, block);
        }
    }

    /// Writes one block.
    pub(crate) fn write_block(&mut self, volume: VolumeId, block: u64) {
        self.submit(volume, RequestKind::Write { fua: false }, block, Treatment::Cache);
        self.pump();
    }

    fn read(&mut self) {
        let block = self.random_block();
        self.submit(VOLUME, RequestKind::Read, block, Treatment::Bypass);
        self.pump();
    }

    fn submit(&mut self, volume: VolumeId, kind: RequestKind, block: u64, treatment: Treatment) {
        let id = self.next_request;
        self.next_request += 1;
        self.open.insert(id, Open { at: self.now, reads: kind == RequestKind::Read });
        let request = Request {
            id: RequestId(id),
            volume,
            kind,
            offset: block * BLOCK,
            len: BLOCK,
            buf: Some(BufId((id % 1_000_000) as u32)),
            treatment,
            block_crcs: if kind == RequestKind::Read { &[] } else { &[self.zero_crc] },
        };
        self.engine.submit(self.now, request);
    }
}

/// A quantile of latencies, in nanoseconds.
pub(crate) fn quantile(latencies: impl IntoIterator<Item = u64>, share: f64) -> u64 {
    let mut all: Vec<u64> = latencies.into_iter().collect();
    all.sort_unstable();
    all.get(((all.len() as f64 * share) as usize).min(all.len().saturating_sub(1))).copied().unwrap_or(0)
}

/// Mean and coefficient of variation of sums over windows of ten seconds, per second.
pub(crate) fn evenness(samples: &[Sample], of: impl Fn(&Sample) -> u64) -> (f64, f64) {
    let windows: Vec<f64> =
        samples.chunks_exact(10).map(|window| window.iter().map(&of).sum::<u64>() as f64 / 10.0).collect();
    let mean = windows.iter().sum::<f64>() / windows.len() as f64;
    let variance = windows.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / windows.len() as f64;
    (mean, variance.sqrt() / mean)
}

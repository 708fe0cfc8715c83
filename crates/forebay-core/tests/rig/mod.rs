//! An engine on devices that take no time and hold nothing but zeroes: for looking at what policies do to a trace.
//!
//! Everything completes in the order in which it was started. There is no payload, so a trace of millions of requests
//! takes seconds; what is right or wrong is the simulator's business, not this one's.
#![allow(dead_code, reason = "the example and each test use a part")]

use forebay_core::{
    Action, Attachment, BufId, DetachHow, Engine, EngineConfig, FormatParams, OnBackingChange, OpId,
    PoolSettings, Request, RequestId, RequestKind, Status, Treatment, VolumeSettings, format_cache,
};
use forebay_format::checkpoint::{BackingRecord, VolumeEntry};
use forebay_format::{BLOCK_BYTES, CacheUuid, Geometry, Members, VolumeId};
use std::collections::{BTreeMap, VecDeque};

/// CRC32C of 4096 zero bytes.
const ZERO_CRC: u32 = 0x98f9_4189;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Time between two requests.
const PACE_NS: u64 = 20_000;
/// Requests in flight.
const DEPTH: u64 = 64;

/// After so long no fill waits for others any more.
pub(crate) const GATHERED_NS: u64 = 300_000_000;

/// The engine and its devices.
pub(crate) struct Rig {
    /// The engine.
    pub(crate) engine: Engine,
    /// Blocks that the cache can hold.
    pub(crate) capacity: u64,
    volume_blocks: u64,
    now: u64,
    made: u64,
    meta: BTreeMap<u64, Vec<u8>>,
    done: VecDeque<(OpId, Vec<u32>)>,
}

impl Rig {
    /// A new cache of `segments` segments, with volumes of `volume_blocks` each.
    pub(crate) fn new(
        (segments, segment_blocks): (u32, u32),
        volume_blocks: u64,
        volumes: &[VolumeSettings],
        pool: PoolSettings,
    ) -> Self {
        let mut bytes = u64::from(segments) * u64::from(segment_blocks) * BLOCK;
        let geometry = loop {
            match Geometry::for_device(bytes, Some(segment_blocks)) {
                Ok(geometry) if geometry.segment_count >= segments => break geometry,
                _ => bytes += u64::from(segment_blocks) * BLOCK,
            }
        };
        let entry = |(at, settings): (usize, &VolumeSettings)| entry(at, volume_blocks, settings);
        let params = FormatParams {
            geometry,
            members: Members::default(),
            uuid: CacheUuid([7; 16]),
            volumes: volumes.iter().enumerate().map(entry).collect(),
            created_unix_s: 1_700_000_000,
            written_by: "rig".into(),
        };
        let meta = format_cache(&params).expect("the parameters are legal").into_iter().collect();
        let attach = |(at, settings): (usize, &VolumeSettings)| attachment(at, volume_blocks, settings);
        let config = EngineConfig { pool, ..EngineConfig::default() };
        let attachments = volumes.iter().enumerate().map(attach).collect();
        let engine = Engine::open(config, bytes, attachments, 1);
        let mut rig =
            Self { engine, capacity: 0, volume_blocks, now: 1, made: 0, meta, done: VecDeque::new() };
        rig.run();
        assert_eq!(rig.engine.status(), Status::Ready);
        rig.capacity = rig.engine.stats().capacity_blocks;
        rig
    }

    /// Makes one request of whole blocks; every 64th time lets everything come to rest that follows from them.
    pub(crate) fn request(
        &mut self,
        volume: u16,
        kind: RequestKind,
        block: u64,
        blocks: u64,
        treatment: Treatment,
    ) {
        self.now += PACE_NS;
        let crcs =
            vec![ZERO_CRC; if matches!(kind, RequestKind::Write { .. }) { blocks as usize } else { 0 }];
        let request = Request {
            id: RequestId(self.now),
            volume: VolumeId(volume),
            kind,
            offset: block * BLOCK,
            len: blocks * BLOCK,
            buf: Some(BufId(1)),
            treatment,
            block_crcs: &crcs,
        };
        self.engine.submit(self.now, request);
        self.made += 1;
        if self.made.is_multiple_of(DEPTH) {
            self.run();
        }
    }

    /// Reads one block as the volume's settings say.
    pub(crate) fn read(&mut self, volume: u16, block: u64) {
        self.request(volume, RequestKind::Read, block, 1, Treatment::Cache);
    }

    /// Writes one block as the volume's settings say.
    pub(crate) fn write(&mut self, volume: u16, block: u64) {
        self.request(volume, RequestKind::Write { fua: false }, block, 1, Treatment::Cache);
    }

    /// Takes a volume away.
    pub(crate) fn detach(&mut self, volume: u16, how: DetachHow) {
        self.rest(10_000_000);
        self.engine.detach_volume(self.now, VolumeId(volume), how).expect("it can be detached");
        self.rest(1_000_000_000);
        assert!(self.engine.volume_stats(VolumeId(volume)).is_none(), "it is gone");
    }

    /// Brings a volume: a new one, or one that was kept.
    pub(crate) fn attach(&mut self, volume: u16, settings: &VolumeSettings) {
        let entry = entry(volume.into(), self.volume_blocks, settings);
        let attachment = attachment(volume.into(), self.volume_blocks, settings);
        self.engine.attach_volume(self.now, entry, attachment).expect("it can be attached");
        self.rest(1_000_000_000);
        assert!(self.engine.volume_stats(VolumeId(volume)).is_some(), "it is there");
    }

    /// Takes segments away from the end of the pool.
    pub(crate) fn shrink(&mut self, segments: u32) {
        let geometry = self.engine.geometry();
        let bytes = geometry.device_blocks * BLOCK - u64::from(segments) * geometry.segment_bytes();
        self.engine.shrink_pool(self.now, bytes).expect("it can be smaller");
        self.rest(10_000_000_000);
        assert_eq!(self.engine.geometry().segment_count, geometry.segment_count - segments);
        self.capacity = self.engine.stats().capacity_blocks;
    }

    /// Lets time pass until nothing is due for so long.
    pub(crate) fn rest(&mut self, ns: u64) {
        self.run();
        let end = self.now + ns;
        while let Some(due) = self.engine.next_deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.engine.tick(self.now);
            self.run();
        }
        self.now = end;
        self.engine.tick(end);
        self.run();
    }

    /// Time now.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    fn run(&mut self) {
        loop {
            while let Some(action) = self.engine.next_action() {
                self.perform(action);
            }
            if self.done.is_empty() {
                break;
            }
            // All that has completed makes one turn of the owner's loop.
            for (op, crcs) in std::mem::take(&mut self.done) {
                self.engine.complete(self.now, op, Ok(()), &crcs);
            }
        }
        if self.engine.next_deadline().is_some_and(|due| due <= self.now) {
            self.engine.tick(self.now);
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Read { op, len, crc, .. } => {
                let blocks = if crc { len.div_ceil(BLOCK_BYTES as u32) } else { 0 };
                self.done.push_back((op, vec![ZERO_CRC; blocks as usize]));
            }
            Action::ReadMeta { op, offset, len } => {
                let mut bytes = vec![0; len as usize];
                for (at, stored) in self.meta.range(..offset + u64::from(len)) {
                    let from = (*at).max(offset);
                    let to = (at + stored.len() as u64).min(offset + u64::from(len));
                    if from < to {
                        bytes[(from - offset) as usize..(to - offset) as usize]
                            .copy_from_slice(&stored[(from - at) as usize..(to - at) as usize]);
                    }
                }
                self.engine.complete_meta(self.now, op, Ok(&bytes));
            }
            Action::Write { op, .. }
            | Action::WriteMeta { op, .. }
            | Action::Flush { op, .. }
            | Action::Zero { op, .. } => self.done.push_back((op, Vec::new())),
            Action::Crc { op, .. } => self.engine.complete(self.now, op, Ok(()), &[ZERO_CRC]),
            Action::VolumeQuiet { volume } => {
                let backing = backing(self.volume_blocks);
                self.engine.finish_detach(self.now, volume, backing).expect("it asked for this");
            }
            Action::Reply { result, .. } => assert!(result.is_ok(), "nothing fails here: {result:?}"),
            Action::RecordLoss { .. } => unreachable!("no device fails here"),
            Action::Copy { .. }
            | Action::FillZero { .. }
            | Action::Notice(_)
            | Action::Quiesced
            | Action::Closed => {}
        }
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
    }
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

/// Numbers below a bound, the small ones more often: the k-th in proportion to `1 / (k + 1)^exponent`, and scattered.
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

    /// Draws one.
    pub(crate) fn draw(&self, dice: &mut Dice) -> u64 {
        let all = *self.sums.last().expect("a distribution over something");
        let at = (dice.word() >> 11) as f64 / (1_u64 << 53) as f64 * all;
        let rank = self.sums.partition_point(|sum| *sum < at) as u64;
        // An odd factor permutes the numbers below a power of two: neighbours in rank are no neighbours on the volume.
        rank.wrapping_mul(0x9e37_79b1) % (self.sums.len() as u64).next_power_of_two()
    }
}

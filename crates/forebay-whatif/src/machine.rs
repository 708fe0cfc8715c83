//! An engine and its devices, in virtual time.
//!
//! All data is zeroes, so there is no payload. Written metadata is dropped: the cache is not opened
//! again. As in the daemon, the engine gets all completions of an instant before its next actions
//! are taken, so that they share batches.

use crate::devices::{Disk, Flash, Work};
use crate::plan::{Plan, PlanError};
use forebay_core::{
    Action, Attachment, BufId, Device, Engine, EngineConfig, FormatParams, IoAction, OnBackingChange, OpId,
    OwnerAction, Request, RequestError, RequestId, RequestKind, RequestOutcome, Status, Suspicion, Treatment,
    format_cache,
};
use forebay_format::checkpoint::{BackingRecord, VolumeEntry};
use forebay_format::{BLOCK_BYTES, CacheUuid, Geometry, Members, VolumeId};

const BLOCK: u64 = BLOCK_BYTES as u64;
pub(crate) const VOLUME: VolumeId = VolumeId(0);

/// An operation in flight on a device.
#[derive(Clone, Copy, Default)]
struct UnderWay {
    bytes: u64,
    /// It is a read, with checksums.
    reads: bool,
    /// It is a read of metadata at this offset, in bytes.
    meta_at: Option<u64>,
}

/// An answer to a request.
#[derive(Clone, Copy)]
pub(crate) struct Reply {
    pub(crate) id: u64,
    pub(crate) path: RequestOutcome,
    pub(crate) result: Result<(), RequestError>,
}

/// An engine and its devices.
pub(crate) struct Machine {
    pub(crate) engine: Engine,
    pub(crate) now: u64,
    flash: Flash,
    disk: Disk,
    /// By operation number.
    under_way: Vec<UnderWay>,
    /// The empty cache.
    format: Vec<(u64, Vec<u8>)>,
    zero_crc: u32,
    crcs: Vec<u32>,
    ended: Vec<u32>,
    pub(crate) replies: Vec<Reply>,
}

fn backing(volume_bytes: u64) -> BackingRecord {
    BackingRecord { kind: 1, size_bytes: volume_bytes, unique: [1, 1], stamp_ns: None, samples: Vec::new() }
}

impl Machine {
    /// Creates a machine with a new cache in front of the disk, open and ready.
    pub(crate) fn new(plan: &Plan) -> Result<Self, PlanError> {
        let refused = |why: String| PlanError::Cache { bytes: plan.cache_bytes, why };
        let geometry = Geometry::for_device(plan.cache_bytes, plan.segment_blocks);
        let params = FormatParams {
            geometry: geometry.map_err(|error| refused(error.to_string()))?,
            members: Members::default(),
            uuid: CacheUuid([7; 16]),
            encryption: None,
            volumes: vec![VolumeEntry {
                id: VOLUME,
                mode: plan.volume.mode,
                name: "volume".into(),
                size_bytes: plan.volume_bytes,
                flush_epoch: 0,
                uuid: [1; 16],
                backing: backing(plan.volume_bytes),
            }],
            created_unix_s: 0,
            written_by: "what-if".into(),
        };
        let format = format_cache(&params).map_err(|error| refused(error.to_string()))?;
        let attachment = Attachment {
            volume: VOLUME,
            settings: plan.volume,
            size_bytes: plan.volume_bytes,
            backing: backing(plan.volume_bytes),
            backing_sector_bytes: 512,
            on_change: OnBackingChange::Refuse,
            suspicion: Suspicion::None,
        };
        let config =
            EngineConfig { scratch_blocks: plan.scratch_blocks, pool: plan.pool, ..EngineConfig::default() };
        let mut machine = Self {
            engine: Engine::open(config, plan.cache_bytes, vec![attachment], 0),
            now: 0,
            flash: Flash::new(plan.flash),
            disk: Disk::new(plan.disk, plan.volume_bytes),
            under_way: Vec::new(),
            format,
            zero_crc: forebay_format::checksum(&[0; BLOCK_BYTES]),
            crcs: Vec::new(),
            ended: Vec::new(),
            replies: Vec::new(),
        };
        machine.act();
        while machine.engine.status() == Status::Opening {
            let Some(next) = machine.next_event() else { break };
            machine.advance(next);
            machine.act();
        }
        match machine.engine.status() {
            Status::Ready => {}
            status => return Err(refused(format!("the engine does not open it: {status:?}"))),
        }
        machine.format = Vec::new();
        Ok(machine)
    }

    /// Submits a request to the engine. [`Machine::act`] begins it.
    pub(crate) fn submit(&mut self, id: u64, kind: RequestKind, (offset, len): (u64, u64), plan: &Plan) {
        let blocks = (offset % BLOCK + len).div_ceil(BLOCK) as usize;
        let crcs = if matches!(kind, RequestKind::Write { .. }) { blocks } else { 0 };
        self.zero_crcs(crcs);
        let has_buffer = matches!(kind, RequestKind::Read | RequestKind::Write { .. });
        let request = Request {
            id: RequestId(id),
            volume: VOLUME,
            kind,
            offset,
            len,
            buf: has_buffer.then_some(BufId((id % 1_000_000) as u32)),
            treatment: if plan.bypass { Treatment::Bypass } else { Treatment::Cache },
            block_crcs: &self.crcs[..crcs],
        };
        self.engine.submit(self.now, request);
    }

    fn zero_crcs(&mut self, blocks: usize) {
        if self.crcs.len() < blocks {
            self.crcs.resize(blocks, self.zero_crc);
        }
    }

    /// Returns the time of the next event of the devices or the engine.
    pub(crate) fn next_event(&self) -> Option<u64> {
        [self.flash.next(), self.disk.next(), self.engine.next_deadline()].into_iter().flatten().min()
    }

    /// Lets time pass, and passes completions to the engine.
    pub(crate) fn advance(&mut self, until: u64) {
        self.now = self.now.max(until);
        let mut ended = std::mem::take(&mut self.ended);
        self.flash.ended(self.now, &mut ended);
        self.disk.ended(self.now, &mut ended);
        for op in ended.drain(..) {
            self.complete(op);
        }
        self.ended = ended;
        self.engine.tick(self.now);
    }

    fn complete(&mut self, op: u32) {
        let UnderWay { bytes, reads, meta_at } = self.under_way[op as usize];
        if let Some(at) = meta_at {
            let bytes = self.metadata(at, bytes as usize);
            return self.engine.complete_meta(self.now, OpId(op), Ok(&bytes));
        }
        let blocks = if reads { bytes.div_ceil(BLOCK) as usize } else { 0 };
        self.zero_crcs(blocks);
        self.engine.complete(self.now, OpId(op), Ok(()), &self.crcs[..blocks]);
    }

    fn metadata(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for (at, piece) in &self.format {
            let (from, to) = ((*at).max(offset), (at + piece.len() as u64).min(offset + len as u64));
            if from < to {
                bytes[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&piece[(from - at) as usize..(to - at) as usize]);
            }
        }
        bytes
    }

    /// Performs the engine's pending actions.
    pub(crate) fn act(&mut self) {
        while let Some(action) = self.engine.next_action() {
            match action {
                Action::Io(action) => self.start(action),
                Action::Owner(action) => self.handle(action),
            }
        }
    }

    fn start(&mut self, action: IoAction) {
        match action {
            IoAction::Read { op, device, offset, len, .. } => {
                self.begin(op, device, Work::Read, (offset, len.into()));
            }
            IoAction::Write { op, device, offset, len } => {
                self.begin(op, device, Work::Write, (offset, len.into()));
            }
            IoAction::ReadMeta { op, offset, len } => {
                self.begin(op, Device::Cache, Work::Read, (offset, len.into()));
                self.under_way[op.0 as usize].meta_at = Some(offset);
            }
            IoAction::WriteMeta { op, offset } => {
                let len = self.engine.meta(op).len() as u64;
                self.begin(op, Device::Cache, Work::Write, (offset, len));
            }
            IoAction::Flush { op, device } => self.begin(op, device, Work::Flush, (0, 0)),
            IoAction::FlushMember { op, .. } => self.begin(op, Device::Cache, Work::Flush, (0, 0)),
            IoAction::Zero { op, volume, offset, len, .. } => {
                self.begin(op, Device::Backing(volume), Work::Write, (offset, len));
            }
            // No bytes move: only the latency of an operation.
            IoAction::DiscardSegment { op, .. } => self.begin(op, Device::Cache, Work::Write, (0, 0)),
            IoAction::Crc { op, .. } => self.engine.complete(self.now, op, Ok(()), &[self.zero_crc]),
            IoAction::Copy { .. } | IoAction::FillZero { .. } => {}
        }
    }

    fn handle(&mut self, action: OwnerAction) {
        match action {
            OwnerAction::Reply { request, result, path, .. } => {
                self.replies.push(Reply { id: request.0, path, result });
            }
            OwnerAction::Notice(_)
            | OwnerAction::VolumeQuiet { .. }
            | OwnerAction::Quiesced
            | OwnerAction::RecordLoss { .. }
            | OwnerAction::RecordOut { .. }
            | OwnerAction::Closed => {}
        }
    }

    fn begin(&mut self, op: OpId, device: Device, work: Work, (offset, bytes): (u64, u64)) {
        let index = op.0 as usize;
        if self.under_way.len() <= index {
            self.under_way.resize(index + 1, UnderWay::default());
        }
        self.under_way[index] = UnderWay { bytes, reads: work == Work::Read, meta_at: None };
        match device {
            Device::Cache => self.flash.begin(self.now, op.0, work, bytes),
            Device::Backing(_) => self.disk.begin(self.now, op.0, work, offset, bytes),
        }
    }
}

//! Ordered destage, observed by the content of the backing store after every write to it.

use forebay_core::{
    Action, Attachment, BufId, DestageOrder, Device, Drain, Engine, EngineConfig, FormatParams, IoAction,
    OnBackingChange, OpId, OwnerAction, Request, RequestId, RequestKind, Span, Status, Treatment,
    VolumeSettings, format_cache,
};
use forebay_format::checkpoint::{BackingRecord, VolumeEntry};
use forebay_format::{BLOCK_BYTES, CacheUuid, Geometry, Members, VolumeId};

const VOLUME: VolumeId = VolumeId(0);
const CACHE_BYTES: usize = 8 << 20;
const BLOCKS: usize = 3;

/// An engine over two devices in memory that execute operations at once.
struct Machine {
    engine: Engine,
    now: u64,
    scratch: Vec<u8>,
    client: Vec<u8>,
    cache: Vec<u8>,
    backing: Vec<u8>,
    /// The content of the backing store after every write to it, a letter for each block.
    images: Vec<String>,
    /// The daemon dies after this number of writes to the backing store.
    lives: usize,
}

impl Machine {
    fn new(order: DestageOrder) -> Self {
        let entry = VolumeEntry {
            name: "v".into(),
            size_bytes: (BLOCKS * BLOCK_BYTES) as u64,
            ..VolumeEntry::default()
        };
        let params = FormatParams {
            geometry: Geometry::for_device(CACHE_BYTES as u64, Some(16)).expect("a device of that size"),
            uuid: CacheUuid([7; 16]),
            encryption: None,
            members: Members::default(),
            volumes: vec![entry],
            created_unix_s: 0,
            written_by: String::new(),
        };
        let mut cache = vec![0; CACHE_BYTES];
        for (offset, bytes) in format_cache(&params).expect("these parameters") {
            cache[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        let backing = vec![b'.'; BLOCKS * BLOCK_BYTES];
        Self::start(order, cache, backing)
    }

    fn start(order: DestageOrder, cache: Vec<u8>, backing: Vec<u8>) -> Self {
        let attachment = Attachment {
            volume: VOLUME,
            settings: VolumeSettings {
                destage_order: order,
                idle_delay: 0,
                dirty_low_pct: 50,
                ..VolumeSettings::default()
            },
            size_bytes: backing.len() as u64,
            backing: BackingRecord::default(),
            backing_sector_bytes: 512,
            on_change: OnBackingChange::Refuse,
            suspicion: forebay_core::Suspicion::None,
        };
        let config = EngineConfig { scratch_blocks: 256, ..EngineConfig::default() };
        let scratch = vec![0; 256 * BLOCK_BYTES];
        let engine = Engine::open(config, CACHE_BYTES as u64, vec![attachment], 0);
        let client = vec![0; BLOCK_BYTES];
        let mut machine =
            Self { engine, now: 0, scratch, client, cache, backing, images: Vec::new(), lives: usize::MAX };
        machine.run();
        assert_eq!(machine.engine.status(), Status::Ready);
        machine
    }

    /// Kills the daemon and starts it again.
    fn restart(self) -> Self {
        Self::start(DestageOrder::Ordered, self.cache, self.backing)
    }

    fn memory(&mut self, span: Span) -> &mut [u8] {
        let buffer = if span.buf == forebay_core::SCRATCH { &mut self.scratch } else { &mut self.client };
        &mut buffer[span.offset as usize..][..span.len as usize]
    }

    fn device(&mut self, device: Device) -> &mut Vec<u8> {
        if device == Device::Cache { &mut self.cache } else { &mut self.backing }
    }

    /// Performs all pending actions, and lets the requested time pass.
    fn run(&mut self) {
        loop {
            while self.lives > 0
                && let Some(action) = self.engine.next_action()
            {
                self.perform(action);
            }
            match self.engine.next_deadline() {
                Some(deadline) if self.lives > 0 => self.now = deadline,
                _ => return,
            }
            self.engine.tick(self.now);
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Io(IoAction::Read { op, device, offset, len, .. }) => {
                let bytes = self.device(device)[offset as usize..][..len as usize].to_vec();
                let mut left = &bytes[..];
                for span in self.engine.spans(op).to_vec() {
                    let (now, later) = left.split_at(span.len as usize);
                    self.memory(span).copy_from_slice(now);
                    left = later;
                }
                let crcs: Vec<u32> = bytes.chunks(BLOCK_BYTES).map(crc32c::crc32c).collect();
                self.engine.complete(self.now, op, Ok(()), &crcs);
            }
            Action::Io(IoAction::Write { op, device, offset, .. }) => {
                let mut bytes = self.engine.header(op).unwrap_or_default().to_vec();
                for span in self.engine.spans(op).to_vec() {
                    bytes.extend_from_slice(self.memory(span));
                }
                self.store(op, device, offset, &bytes);
            }
            Action::Io(IoAction::WriteMeta { op, offset }) => {
                let bytes = self.engine.meta(op).to_vec();
                self.store(op, Device::Cache, offset, &bytes);
            }
            Action::Io(IoAction::ReadMeta { op, offset, len }) => {
                let bytes = &self.cache[offset as usize..][..len as usize];
                self.engine.complete_meta(self.now, op, Ok(bytes));
            }
            Action::Io(IoAction::Flush { op, .. }) => self.engine.complete(self.now, op, Ok(()), &[]),
            Action::Owner(OwnerAction::Reply { result, .. }) => assert_eq!(result, Ok(())),
            Action::Owner(OwnerAction::Notice(_)) => {}
            other => unreachable!("whole blocks do not need {other:?}"),
        }
    }

    fn store(&mut self, op: OpId, device: Device, offset: u64, bytes: &[u8]) {
        self.device(device)[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        if device != Device::Cache {
            let letters = self.backing.chunks(BLOCK_BYTES).map(|block| char::from(block[0]));
            self.images.push(letters.collect());
            self.lives -= 1;
        }
        self.engine.complete(self.now, op, Ok(()), &[]);
    }

    fn request(&mut self, kind: RequestKind, block: usize, letter: u8) {
        self.client.fill(letter);
        let crc = crc32c::crc32c(&self.client);
        let is_write = kind != RequestKind::Flush;
        let request = Request {
            id: RequestId(1),
            volume: VOLUME,
            kind,
            offset: (block * BLOCK_BYTES) as u64,
            len: if is_write { BLOCK_BYTES as u64 } else { 0 },
            buf: is_write.then_some(BufId(0)),
            treatment: Treatment::Cache,
            block_crcs: if is_write { &[crc] } else { &[] },
        };
        self.engine.submit(self.now, request);
        self.run();
    }

    fn write(&mut self, block: usize, letter: u8) {
        self.request(RequestKind::Write { fua: false }, block, letter);
    }

    fn flush(&mut self) {
        self.request(RequestKind::Flush, 0, 0);
    }

    fn drain(&mut self) {
        self.engine.set_drain(self.now, VOLUME, Drain::Full);
        self.run();
    }

    /// Three epochs; the later ones overwrite blocks of the earlier ones.
    fn story(&mut self) {
        self.write(0, b'a');
        self.write(1, b'a');
        self.flush();
        self.write(0, b'b');
        self.write(2, b'b');
        self.flush();
        self.write(1, b'c');
    }
}

#[test]
fn the_backing_store_sees_epoch_after_epoch() {
    let mut machine = Machine::new(DestageOrder::Ordered);
    assert!(machine.engine.is_ordered(VOLUME), "nothing was dirty: the guarantee holds from the start");
    machine.story();
    assert_eq!(machine.engine.shadow_blocks(VOLUME), 2, "both blocks of the first epoch were written over");
    machine.drain();
    // Within an epoch the elevator continues from its position: block 2 comes before block 0.
    assert_eq!(machine.images, ["aa.", "aab", "bab", "bcb"]);
    assert_eq!((machine.engine.dirty_blocks(VOLUME), machine.engine.shadow_blocks(VOLUME)), (0, 0));
}

#[test]
fn overwrites_coalesce_without_an_order() {
    let mut machine = Machine::new(DestageOrder::Elevator);
    machine.story();
    machine.flush();
    machine.drain();
    assert_eq!(machine.images, ["bcb"]);
}

#[test]
fn a_crash_does_not_lose_the_order() {
    for lives in 1..=3 {
        let mut machine = Machine::new(DestageOrder::Ordered);
        machine.story();
        machine.flush();
        machine.lives = lives;
        machine.drain();
        let mut machine = machine.restart();
        assert!(machine.engine.is_ordered(VOLUME));
        machine.drain();
        let place = |image: &String| match image.as_str() {
            "aa." => 1,
            "aab" | "ba." => 2,
            "bab" => 3,
            "bcb" => 4,
            other => panic!("after {lives} writes and a crash: {other}"),
        };
        assert!(machine.images.iter().map(place).is_sorted(), "after {lives}: {:?}", machine.images);
        assert_eq!(machine.images.last().map(String::as_str), Some("bcb"));
    }
}

#[test]
fn fua_writes_order_and_order_can_change() {
    let mut machine = Machine::new(DestageOrder::Ordered);
    machine.request(RequestKind::Write { fua: true }, 2, b'a');
    machine.write(0, b'a');
    let mut settings = machine.engine.volume_settings(VOLUME).expect("it is attached");
    machine.drain();
    assert_eq!(machine.images, ["..a", "a.a"]);

    machine.engine.set_drain(machine.now, VOLUME, Drain::Off);
    machine.story();
    settings.destage_order = DestageOrder::Elevator;
    machine.engine.configure_volume(machine.now, VOLUME, settings).expect("settings in range");
    assert!(!machine.engine.is_ordered(VOLUME));
    machine.run();
    assert_eq!(machine.engine.shadow_blocks(VOLUME), 0, "they are given up");
    settings.destage_order = DestageOrder::Ordered;
    machine.engine.configure_volume(machine.now, VOLUME, settings).expect("settings in range");
    machine.run();
    assert!(!machine.engine.is_ordered(VOLUME), "not before what is dirty now is drained");
    machine.drain();
    assert_eq!(machine.images.last().map(String::as_str), Some("bcb"));
    assert!(machine.engine.is_ordered(VOLUME));
}

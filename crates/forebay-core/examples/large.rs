//! Very large caches on little disk: fills a sparse cache file with metadata only, and opens it
//! again, both with the real engine and a clock. `bench/restart` uses it to make caches that the
//! daemon is then started on.
//!
//! ```text
//! large fill FILE GIB [clean] [random] [stop] [blocks=N] [request=N] [overwrite=N]
//!                                until it is full, or so many blocks; stop: orderly; overwrite:
//!                                so many random blocks afterwards, and what checkpoints cost
//! large open FILE                                                       times recovery and a checkpoint
//! ```
//!
//! Payload is not written: a hole reads as zeroes, and every block is said to hold zeroes. All I/O
//! is one `pread` or `pwrite` after the other, so times are those of the engine and of the page
//! cache; the daemon reads in parallel.

use forebay_core::{
    Action, Attachment, BufId, Device, Engine, EngineConfig, FormatParams, IoAction, OnBackingChange, OpId,
    OwnerAction, PoolSettings, Request, RequestId, RequestKind, Status, Treatment, VolumeSettings,
    format_cache,
};
use forebay_format::checkpoint::{BackingRecord, VolumeEntry};
use forebay_format::{BLOCK_BYTES, CacheUuid, Geometry, Members, VolumeId};
use std::collections::VecDeque;
use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// CRC32C of 4096 zero bytes.
const ZERO_CRC: u32 = 0x98f9_4189;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Requests in flight while filling.
const DEPTH: u64 = 8;

/// Engine, its sparse file, and a clock that goes on by a fixed step.
struct Large {
    engine: Engine,
    file: File,
    now: u64,
    done: VecDeque<OpId>,
    meta: Vec<u8>,
    /// Bytes of checkpoints that were written.
    checkpoints: u64,
    /// Most processor time that the engine took for one call, and the call.
    longest: (Duration, &'static str),
    in_engine: Duration,
}

impl Large {
    fn open(file: File) -> Outcome<Self> {
        let settings = PoolSettings { dirty_limit_pct: 90, ..PoolSettings::default() };
        let config = EngineConfig { pool: settings, ..EngineConfig::default() };
        let engine = Engine::open(config, file.metadata()?.len(), Vec::new(), 1);
        let mut large = Self {
            engine,
            file,
            now: 1,
            done: VecDeque::new(),
            meta: Vec::new(),
            checkpoints: 0,
            longest: (Duration::ZERO, "none"),
            in_engine: Duration::ZERO,
        };
        large.run()?;
        match large.engine.status() {
            Status::Ready => Ok(large),
            status => Err(format!("the cache does not open: {status:?}").into()),
        }
    }

    /// Calls the engine and notes how long it took.
    fn call<T>(&mut self, what: &'static str, f: impl FnOnce(&mut Engine, u64) -> T) -> T {
        let began = processor_time();
        let result = f(&mut self.engine, self.now);
        let took = processor_time().saturating_sub(began);
        self.in_engine += took;
        if took > self.longest.0 {
            self.longest = (took, what);
        }
        result
    }

    /// Carries out what the engine wants until it wants nothing.
    fn run(&mut self) -> Outcome<()> {
        loop {
            while let Some(action) = self.call("next_action", |engine, _| engine.next_action()) {
                self.perform(action)?;
            }
            if self.done.is_empty() {
                return Ok(());
            }
            for op in std::mem::take(&mut self.done) {
                self.call("complete", |engine, now| engine.complete(now, op, Ok(()), &[]));
            }
        }
    }

    fn perform(&mut self, action: Action) -> Outcome<()> {
        match action {
            Action::Io(IoAction::ReadMeta { op, offset, len }) => {
                let mut meta = std::mem::take(&mut self.meta);
                meta.resize(meta.len().max(len as usize), 0);
                self.file.read_exact_at(&mut meta[..len as usize], offset)?;
                self.call("complete_meta", |engine, now| {
                    engine.complete_meta(now, op, Ok(&meta[..len as usize]));
                });
                self.meta = meta;
            }
            Action::Io(IoAction::Write { op, device, offset, .. }) => {
                if let (Device::Cache, Some(header)) = (device, self.engine.header(op)) {
                    self.file.write_all_at(header, offset)?;
                }
                self.done.push_back(op);
            }
            Action::Io(IoAction::WriteMeta { op, offset }) => {
                let meta = self.engine.meta(op);
                if offset < self.engine.geometry().segments_start_block * BLOCK {
                    self.checkpoints += meta.len() as u64;
                }
                self.file.write_all_at(meta, offset)?;
                self.done.push_back(op);
            }
            Action::Io(IoAction::Read { op, len, crc, .. }) => {
                let crcs = vec![ZERO_CRC; if crc { len.div_ceil(BLOCK_BYTES as u32) as usize } else { 0 }];
                self.call("complete", |engine, now| engine.complete(now, op, Ok(()), &crcs));
            }
            Action::Io(IoAction::Crc { op, .. }) => {
                self.call("complete", |engine, now| engine.complete(now, op, Ok(()), &[ZERO_CRC]));
            }
            Action::Io(
                IoAction::Flush { op, .. }
                | IoAction::FlushMember { op, .. }
                | IoAction::Zero { op, .. }
                | IoAction::DiscardSegment { op, .. },
            ) => self.done.push_back(op),
            Action::Owner(OwnerAction::Quiesced) => {
                let table = self.engine.volume_table();
                let records: Vec<_> = table.into_iter().map(|entry| (entry.id, entry.backing)).collect();
                self.call("finish_shutdown", |engine, now| engine.finish_shutdown(now, &records));
            }
            Action::Owner(OwnerAction::Reply { result, .. }) => result?,
            Action::Io(IoAction::Copy { .. } | IoAction::FillZero { .. })
            | Action::Owner(
                OwnerAction::Notice(_)
                | OwnerAction::VolumeQuiet { .. }
                | OwnerAction::Closed
                | OwnerAction::RecordLoss { .. }
                | OwnerAction::RecordOut { .. },
            ) => {}
        }
        Ok(())
    }

    /// Attaches the first volume of the table, or a new one of so many blocks.
    fn attach(&mut self, blocks: u64) -> Outcome<VolumeId> {
        let known = self.engine.volume_table().into_iter().next();
        let entry = known.unwrap_or_else(|| new_volume(blocks));
        let attachment = Attachment {
            volume: entry.id,
            settings: VolumeSettings {
                dirty_low_pct: 90,
                dirty_high_pct: 90,
                idle_delay: 0,
                ..VolumeSettings::default()
            },
            size_bytes: entry.size_bytes,
            backing: entry.backing.clone(),
            backing_sector_bytes: 512,
            on_change: OnBackingChange::KeepDirty,
            suspicion: forebay_core::Suspicion::None,
        };
        let id = entry.id;
        self.call("attach_volume", |engine, now| engine.attach_volume(now, entry, attachment))?;
        self.run()?;
        Ok(id)
    }

    fn cached(&self, volume: VolumeId) -> u64 {
        self.engine.volume_stats(volume).map_or(0, |stats| stats.cached_blocks)
    }
}

fn new_volume(blocks: u64) -> VolumeEntry {
    VolumeEntry {
        id: VolumeId(0),
        mode: forebay_format::checkpoint::Mode::Writeback,
        name: "v".into(),
        size_bytes: blocks * BLOCK,
        flush_epoch: 0,
        uuid: [1; 16],
        backing: BackingRecord {
            kind: 1,
            size_bytes: blocks * BLOCK,
            unique: [1, 2],
            stamp_ns: None,
            samples: Vec::new(),
        },
    }
}

/// What to fill, and how.
struct Fill {
    gib: u64,
    clean: bool,
    random: bool,
    stop: bool,
    blocks: u64,
    request: u64,
    overwrite: u64,
}

impl Fill {
    fn parse(words: &[String]) -> Outcome<Self> {
        let mut fill = Self {
            gib: 0,
            clean: false,
            random: false,
            stop: false,
            blocks: u64::MAX,
            request: 64,
            overwrite: 0,
        };
        for word in words {
            match (word.as_str(), word.split_once('=')) {
                ("clean", _) => fill.clean = true,
                ("random", _) => fill.random = true,
                ("stop", _) => fill.stop = true,
                (_, Some(("blocks", value))) => fill.blocks = value.parse()?,
                (_, Some(("overwrite", value))) => fill.overwrite = value.parse()?,
                (_, Some(("request", value))) => fill.request = value.parse()?,
                (gib, _) => fill.gib = gib.parse()?,
            }
        }
        Ok(fill)
    }
}

fn format(file: &File, gib: u64) -> Outcome<()> {
    file.set_len(gib << 30)?;
    let params = FormatParams {
        geometry: Geometry::for_device(gib << 30, None)?,
        members: Members::default(),
        uuid: CacheUuid([7; 16]),
        encryption: None,
        volumes: Vec::new(),
        created_unix_s: 1_700_000_000,
        written_by: "large".into(),
    };
    for (offset, bytes) in format_cache(&params)? {
        file.write_all_at(&bytes, offset)?;
    }
    Ok(())
}

fn fill(path: &str, fill: &Fill) -> Outcome<()> {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    if file.metadata()?.len() == 0 {
        format(&file, fill.gib)?;
    }
    let mut large = Large::open(file)?;
    let empty = rss_bytes();
    let capacity = large.engine.stats().capacity_blocks;
    let volume = large.attach(capacity * if fill.random { 4 } else { 1 })?;
    let volume_blocks = large.engine.volume_table()[0].size_bytes / BLOCK;
    // What is dirty has a limit, and what is clean a reserve of empty segments.
    let target = fill.blocks.min(capacity * 88 / 100);
    let crcs = vec![ZERO_CRC; fill.request as usize];
    let (mut made, mut seed) = (0_u64, 1_u64);
    let began = Instant::now();
    while made % 1024 != 0 || large.cached(volume) < target {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let places = volume_blocks / fill.request;
        let place = if fill.random { (seed >> 20) % places } else { made % places };
        let kind = if fill.clean { RequestKind::Prefetch } else { RequestKind::Write { fua: false } };
        large.now += 50_000;
        let request = Request {
            id: RequestId(made),
            volume,
            kind,
            offset: place * fill.request * BLOCK,
            len: fill.request * BLOCK,
            buf: Some(BufId(1)),
            treatment: Treatment::Cache,
            block_crcs: &crcs,
        };
        large.call("submit", |engine, now| engine.submit(now, request));
        made += 1;
        if made.is_multiple_of(DEPTH) {
            large.run()?;
        }
    }
    large.run()?;
    let (blocks, rss) = (large.cached(volume), rss_bytes());
    // Each call looks at some segments, and takes what it saw last of the others.
    let calls = large.engine.geometry().segment_count.div_ceil(4096);
    let counted = (0..=calls).map(|_| large.engine.stats().index_memory_bytes).last().unwrap_or(0);
    println!("filled with {blocks} blocks of {capacity} in {:.1} s", began.elapsed().as_secs_f64());
    println!("memory: {counted} bytes counted, {:.2} a block", counted as f64 / blocks as f64);
    println!(
        "memory: {:.2} bytes a block resident, beyond the {empty} bytes before",
        (rss - empty) as f64 / blocks as f64
    );
    println!("longest call: {:?}", large.longest);
    if fill.overwrite > 0 {
        overwrite(&mut large, volume, fill.overwrite, made)?;
    }
    if fill.stop {
        large.now += 1_000_000_000;
        large.call("begin_shutdown", |engine, now| engine.begin_shutdown(now));
        large.run()?;
    }
    Ok(())
}

/// Writes so many blocks at random: what checkpoints take of what is written, and of the time of a
/// call.
fn overwrite(large: &mut Large, volume: VolumeId, count: u64, first: u64) -> Outcome<()> {
    let blocks = large.engine.volume_table()[0].size_bytes / BLOCK;
    let before = large.engine.stats();
    (large.checkpoints, large.longest) = (0, (Duration::ZERO, "none"));
    let mut seed = 1_u64;
    for made in 0..count {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        large.now += 50_000;
        let request = Request {
            id: RequestId(first + made),
            volume,
            kind: RequestKind::Write { fua: false },
            offset: (seed >> 20) % blocks * BLOCK,
            len: BLOCK,
            buf: Some(BufId(1)),
            treatment: Treatment::Cache,
            block_crcs: &[ZERO_CRC],
        };
        large.call("submit", |engine, now| engine.submit(now, request));
        if made % DEPTH == 0 {
            large.run()?;
        }
    }
    large.run()?;
    let stats = large.engine.stats();
    let written = stats.cache_written_bytes - before.cache_written_bytes;
    println!(
        "overwrites: {} checkpoints, {} MiB, {:.2} % of what was written; longest call {:?}",
        stats.checkpoints - before.checkpoints,
        large.checkpoints >> 20,
        large.checkpoints as f64 * 100.0 / written as f64,
        large.longest
    );
    Ok(())
}

fn open(path: &str) -> Outcome<()> {
    let file = File::options().read(true).write(true).open(path)?;
    let began = Instant::now();
    let mut large = Large::open(file)?;
    let took = began.elapsed();
    let blocks = large.engine.stats().cached_blocks;
    println!(
        "opened {blocks} blocks in {:.2} s, of them {:.2} s in the engine",
        took.as_secs_f64(),
        large.in_engine.as_secs_f64()
    );
    println!("recovery's longest call: {:?}", large.longest);
    println!("memory: {:.2} bytes a block resident", rss_bytes() as f64 / blocks as f64);
    large.longest = (Duration::ZERO, "none");
    let volume = large.attach(0)?;
    println!("attached; longest call with its checkpoint: {:?}", large.longest);
    large.longest = (Duration::ZERO, "none");
    let began = Instant::now();
    let request = Request {
        id: RequestId(1),
        volume,
        kind: RequestKind::Read,
        offset: 0,
        len: BLOCK,
        buf: Some(BufId(1)),
        treatment: Treatment::Cache,
        block_crcs: &[],
    };
    large.call("submit", |engine, now| engine.submit(now, request));
    large.run()?;
    println!("first read: {:?}", began.elapsed());
    Ok(())
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Resident memory of this process.
fn rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).map_or(0, |kb| kb << 10)
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        Some(("fill", [path, rest @ ..])) => fill(path, &Fill::parse(rest)?),
        Some(("open", [path])) => open(path),
        _ => {
            Err("usage: large fill FILE GIB [clean] [random] [stop] [blocks=N] [request=N] | large open FILE"
                .into())
        }
    }
}

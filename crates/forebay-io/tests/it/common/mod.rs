//! A reactor with a private directory, and ways to run operations to completion.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::path::PathBuf;
use std::time::Duration;

use forebay_io::{
    Completion, Device, DeviceId, DeviceOptions, EngineKind, EnginePreference, IoFailure, IoSetupError,
    Limits, Op, Reactor,
};

/// Longest time that a test waits before it fails: generous, for a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Bench {
    pub(crate) reactor: Reactor,
    pub(crate) dir: tempfile::TempDir,
    preference: EnginePreference,
}

/// Runs the test on io_uring with small rings, so that they overflow: without I/O threads, with I/O
/// threads that run every step, and with one that takes steps at the slightest load. Then on psync.
pub(crate) fn all_engines(test: impl Fn(&mut Bench)) {
    let uring = EnginePreference::Uring;
    for (preference, io_threads, io_threads_busy_pct) in
        [(uring, 0, 0), (uring, 2, 0), (uring, 1, 1), (EnginePreference::Psync, 0, 0)]
    {
        let limits = Limits { ring_entries: 16, in_flight_max: 64, psync_threads: 4, ..Limits::default() };
        let limits = Limits { io_threads, io_threads_busy_pct, ..limits };
        let reactor = match Reactor::open(preference, limits) {
            Ok((reactor, message)) => {
                assert_eq!(message, None, "an engine asked for by name comes without excuses");
                reactor
            }
            Err(IoSetupError::UringUnavailable { reason }) => {
                println!("skipped on io_uring: {reason}");
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let expected =
            if preference == EnginePreference::Uring { EngineKind::Uring } else { EngineKind::Psync };
        assert_eq!(reactor.engine(), expected);
        let mut bench = Bench { reactor, dir: tempfile::tempdir().unwrap(), preference };
        test(&mut bench);
    }
}

/// Bytes that depend on the seed and look random.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

impl Bench {
    /// Path of the file behind `file_device`.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("device")
    }

    /// A file of `size` patterned bytes as a device, and its contents.
    pub(crate) fn file_device(&mut self, size: usize, options: DeviceOptions) -> (DeviceId, Vec<u8>) {
        let bytes = pattern(size as u64, size);
        std::fs::write(self.path(), &bytes).unwrap();
        let device = Device::open_backing(self.path(), options).unwrap();
        assert_eq!(device.size_bytes(), size as u64);
        (self.reactor.add_device(device), bytes)
    }

    pub(crate) fn file_contents(&self) -> Vec<u8> {
        std::fs::read(self.path()).unwrap()
    }

    /// 512-byte sectors that the file occupies in its file system.
    pub(crate) fn file_sectors(&self) -> u64 {
        std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(self.path()).unwrap())
    }

    /// Runs one operation to completion; no other may be in flight.
    pub(crate) fn run(&mut self, op: Op<'_>) -> Result<u32, IoFailure> {
        self.reactor.submit(4711, op);
        let done = self.collect(1);
        assert_eq!(done[0].token, 4711);
        done[0].result
    }

    /// Waits for exactly `count` completions.
    pub(crate) fn collect(&mut self, count: usize) -> Vec<Completion> {
        let mut out = Vec::new();
        let start = std::time::Instant::now();
        while out.len() < count {
            assert!(start.elapsed() < TIMEOUT, "{} of {count} operations done", out.len());
            self.reactor.wait(Some(TIMEOUT), &mut out).unwrap();
        }
        assert_eq!(out.len(), count);
        out
    }

    /// Waits for the tokens `0..count`, each once, all with the same result.
    pub(crate) fn collect_each_once(&mut self, count: u64, result: Result<u32, IoFailure>) {
        let mut done = self.collect(count as usize);
        done.sort_by_key(|c| c.token);
        for (completion, token) in done.iter().zip(0..) {
            assert_eq!((completion.token, completion.result), (token, result));
        }
        assert_eq!(self.reactor.in_flight(), 0);
    }

    /// Installs a new reactor, drops the old one, and returns another new one.
    pub(crate) fn replace_reactor(&mut self, limits: Limits) -> Reactor {
        self.reactor = Reactor::open(self.preference, limits).unwrap().0;
        Reactor::open(self.preference, limits).unwrap().0
    }
}

//! With a low limit on locked memory, as much as fits is registered, and everything works.
//!
//! The limit belongs to the process, so this test has its own executable: next to other tests it
//! would count their rings, and they would run under its limit. The memory counted against the
//! limit belongs to the user, so as root the test runs as a separate user: another process of root
//! might have pinned as much as the limit allows.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "the other tests use the rest")]
#[path = "it/common/mod.rs"]
mod common;

use common::{all_engines, pattern};
use forebay_io::{BufId, DeviceOptions, EngineKind, Op, Span};
use rustix::process::Uid;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities, set_thread_uid};

const MIB: usize = 1 << 20;

/// Bytes that are pinned for rings, as far as the kernel counts them.
fn pinned_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

#[test]
fn unpinnable_memory_is_still_transferred() {
    if rustix::process::geteuid().is_root() {
        set_thread_uid(Uid::from_raw(0x4000_0000 + std::process::id())).unwrap();
    }
    let mut ours = capabilities(None).unwrap();
    ours.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, ours).unwrap();
    let limit = Some(6 * MIB as u64);
    setrlimit(Resource::Memlock, Rlimit { current: limit, maximum: limit }).unwrap();
    all_engines(|bench| {
        let (device, mut model) = bench.file_device(16 * MIB, DeviceOptions::default());
        let pool = bench.reactor.pool_mut();
        // A buffer larger than the limit, then a chunk, then another one.
        let lens = [8 * MIB, 4096, 4 * MIB, 4096];
        let bufs: Vec<(BufId, usize)> = lens.iter().map(|len| (pool.alloc(*len).unwrap(), *len)).collect();
        for round in 0..3 {
            for (number, (buf, len)) in bufs.iter().enumerate() {
                let fresh = pattern(round * 8 + number as u64, *len);
                let span = Span::new(*buf, 0, *len as u32);
                let offset = (number * MIB) as u64;
                bench.reactor.pool_mut().copy_in(span, &fresh);
                assert_eq!(bench.run(Op::Write { device, offset, spans: &[span] }), Ok(*len as u32));
                model[number * MIB..number * MIB + len].copy_from_slice(&fresh);
                bench.reactor.pool_mut().fill_zero(span);
                assert_eq!(bench.run(Op::Read { device, offset, spans: &[span] }), Ok(*len as u32));
                assert!(bench.reactor.pool().bytes(*buf)[..*len] == fresh);
            }
        }
        assert!(bench.file_contents() == model);
        if bench.reactor.engine() == EngineKind::Uring {
            let pinned = pinned_bytes();
            assert!((4 * MIB..=6 * MIB).contains(&pinned), "{pinned} bytes are registered");
        }
    });
}

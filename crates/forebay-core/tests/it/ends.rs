//! A cache device that ends while it is opened: the engine concludes nothing from the missing part,
//! and writes nothing. If it ends during the last steps of a stop, the engine waits for it.

use forebay_core::{
    Action, DeviceFailure, Engine, EngineConfig, FormatParams, IoAction, OpenError, OwnerAction, Status,
    format_cache,
};
use forebay_format::{CacheUuid, Geometry, Members};

const CACHE_BYTES: usize = 8 << 20;

/// Opens an empty cache whose device ends after `reads` reads.
fn open(reads: usize) -> Engine {
    let params = FormatParams {
        geometry: Geometry::for_device(CACHE_BYTES as u64, Some(16)).expect("a device of that size"),
        uuid: CacheUuid([7; 16]),
        encryption: None,
        members: Members::default(),
        volumes: Vec::new(),
        created_unix_s: 0,
        written_by: String::new(),
    };
    let mut cache = vec![0; CACHE_BYTES];
    for (offset, bytes) in format_cache(&params).expect("these parameters") {
        cache[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
    }
    let mut engine = Engine::open(EngineConfig::default(), CACHE_BYTES as u64, Vec::new(), 0);
    let mut left = reads;
    while let Some(action) = engine.next_action() {
        match action {
            Action::Io(IoAction::ReadMeta { op, offset, len }) if left > 0 => {
                left -= 1;
                let bytes = cache[offset as usize..][..len as usize].to_vec();
                engine.complete_meta(0, op, Ok(&bytes));
            }
            Action::Io(IoAction::ReadMeta { op, .. }) => {
                engine.complete_meta(0, op, Err(DeviceFailure::Ended))
            }
            Action::Io(IoAction::WriteMeta { op, .. }) => engine.complete(0, op, Ok(()), &[]),
            Action::Io(IoAction::Flush { op, .. }) => engine.complete(0, op, Ok(()), &[]),
            Action::Owner(OwnerAction::Notice(_)) => {}
            other => panic!("after {reads} reads: {other:?}"),
        }
    }
    engine
}

#[test]
fn cache_ending_during_open_is_refused() {
    assert_eq!(open(usize::MAX).status(), Status::Ready);
    let reads = (0..).find(|reads| open(*reads).status() != Status::Failed(OpenError::CacheEnded));
    assert_eq!(reads, Some(3), "both superblocks and the checkpoint are read");
}

/// Stops a cache whose device ends for `away_ns` once the last steps have begun. True if it was
/// closed in an orderly way, and the time.
fn stop(away_ns: u64) -> (bool, u64) {
    let mut engine = open(usize::MAX);
    let mut now = 1_000;
    engine.begin_shutdown(now);
    loop {
        while let Some(action) = engine.next_action() {
            match action {
                Action::Io(IoAction::WriteMeta { op, .. } | IoAction::Flush { op, .. }) => {
                    let ended = if now < away_ns { Err(DeviceFailure::Ended) } else { Ok(()) };
                    engine.complete(now, op, ended, &[]);
                }
                Action::Owner(OwnerAction::Quiesced) => engine.finish_shutdown(now, &[]),
                Action::Owner(OwnerAction::Closed) => return (!engine.is_fenced(), now),
                Action::Owner(OwnerAction::Notice(_) | OwnerAction::RecordLoss { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
        now = engine.next_deadline().expect("it waits for something");
        engine.tick(now);
    }
}

#[test]
fn stop_waits_briefly_for_an_ended_device() {
    let second = 1_000_000_000;
    let (closed, at) = stop(3 * second);
    assert!(closed && (3 * second..7 * second).contains(&at), "{closed} {at}");
    let (closed, at) = stop(60 * second);
    assert!(!closed && (6 * second..8 * second).contains(&at), "it is given up: {closed} {at}");
}

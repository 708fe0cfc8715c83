//! Event counters that another process holds too.

#[allow(dead_code, reason = "other suites use the rest")]
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::common::{Bench, all_engines};
use forebay_io::{EventCounter, EventId, IoFailureKind, Op};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_setfl};

/// A counter of the reactor, and the other process's descriptor of it.
fn counter(bench: &mut Bench) -> (EventId, File) {
    let theirs = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let ours = EventCounter::new(theirs.try_clone().unwrap()).unwrap();
    (bench.reactor.add_event(ours), File::from(theirs))
}

#[test]
fn signal_is_taken_once() {
    all_engines(|bench| {
        let (event, mut theirs) = counter(bench);
        bench.reactor.submit(1, Op::TakeEvent { event });
        assert_eq!(bench.reactor.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap().completions, 0);
        theirs.write_all(&3u64.to_ne_bytes()).unwrap();
        assert_eq!(bench.collect(1)[0].result, Ok(0));
        bench.reactor.submit(2, Op::TakeEvent { event });
        let waited = bench.reactor.wait(Some(Duration::from_millis(20)), &mut Vec::new()).unwrap();
        assert_eq!(waited.completions, 0, "the count was taken");
        // Signalled before the operation is submitted, after the other process has made the counter
        // blocking.
        fcntl_setfl(&theirs, OFlags::RDWR).unwrap();
        theirs.write_all(&1u64.to_ne_bytes()).unwrap();
        assert_eq!(bench.collect(1)[0].token, 2);
    });
}

#[test]
fn signal_arrives_and_sets_a_full_counter() {
    all_engines(|bench| {
        let (event, mut theirs) = counter(bench);
        bench.reactor.submit(1, Op::Signal { event });
        bench.reactor.submit(2, Op::Signal { event });
        for completion in bench.collect(2) {
            assert_eq!(completion.result, Ok(0));
        }
        let mut count = [0; 8];
        theirs.read_exact(&mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 2);
        theirs.write_all(&(u64::MAX - 1).to_ne_bytes()).unwrap();
        bench.reactor.submit(3, Op::Signal { event });
        bench.reactor.wait(Some(Duration::from_millis(10)), &mut Vec::new()).unwrap();
        theirs.read_exact(&mut count).unwrap();
        assert!(u64::from_ne_bytes(count) >= u64::MAX - 1, "the other process has something to see");
    });
}

#[test]
fn close_ends_a_wait_and_the_descriptor() {
    all_engines(|bench| {
        let (event, _theirs) = counter(bench);
        bench.reactor.submit(1, Op::TakeEvent { event });
        bench.reactor.wait(Some(Duration::from_millis(10)), &mut Vec::new()).unwrap();
        bench.reactor.close_event(event);
        assert_eq!(bench.collect(1)[0].result.unwrap_err().kind, IoFailureKind::Cancelled);
        bench.reactor.submit(2, Op::Signal { event });
        assert_eq!(bench.collect(1)[0].result.unwrap_err().kind, IoFailureKind::Cancelled);
    });
}

#[test]
fn non_counter_descriptor_is_refused() {
    let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(EventCounter::new(OwnedFd::from(ours)).is_err());
    assert!(EventCounter::new(File::open("/dev/null").unwrap().into()).is_err());
}

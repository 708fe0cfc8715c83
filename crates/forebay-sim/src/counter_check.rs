//! Checks the engine's counters against the events of the world.
//!
//! The operator of a cache sees only its counters. The world itself counts the operations requested
//! by the engine, the requests of clients and their results since the engine was opened. It
//! compares them with [`forebay_core::Stats`] and, where those have more, with the sums of the
//! volumes' counters.

use crate::ensure::ensure;
use forebay_core::{Device, Engine, IoAction, OwnerAction, RequestKind, RequestOutcome, Stats, VolumeStats};
use forebay_format::VolumeId;
use forebay_format::geometry::VOLUMES_MAX;

/// The initial keys of the cache's devices: the members of a mirrored cache, or the two halves of
/// another one, as if they were devices. Targets of copies have higher keys.
pub(crate) const PARTS: [u64; 2] = [11, 12];

/// The events since the engine was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Books {
    seen: Seen,
    /// A volume was attached or detached: its counters do not cover the whole time.
    moved: bool,
    /// A device had ended: an operation may have been requested several times, but counts once.
    ended: bool,
    /// By part of the cache: its key, and the bytes written to it.
    written: [(u64, u64); PARTS.len()],
    /// The same for the target of a copy.
    new: (u64, u64),
    /// Bytes counted for a device went to the one that replaced it.
    strayed: bool,
}

impl Default for Books {
    fn default() -> Self {
        let (seen, written, new) = (Seen::default(), PARTS.map(|key| (key, 0)), (PARTS[1] + 1, 0));
        Self { seen, moved: false, ended: false, written, new, strayed: false }
    }
}

/// Declares a part of [`Stats`] that is visible from outside.
macro_rules! seen {
    ($(#[$doc:meta])* $part:ident { $($name:ident),* $(; $inner:ident: $type:ident)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        struct $part { $($name: u64,)* $($inner: $type,)? }

        impl From<&Stats> for $part {
            fn from(stats: &Stats) -> Self {
                Self { $($name: stats.$name,)* $($inner: $type::from(stats),)? }
            }
        }
    };
}

seen! {
    /// Requests as clients see them, and the engine's notices.
    Seen {
        reads, writes, flushes, zeroes, read_bytes, written_bytes, failed_requests, read_time_ns, write_time_ns,
        flush_time_ns, damaged_blocks, checkpoints; operations: Operations
    }
}

seen! {
    /// Operations on devices. Reads of metadata and zeroing are not counted.
    Operations {
        cache_reads, cache_read_bytes, cache_writes, cache_written_bytes, backing_reads, backing_read_bytes,
        backing_writes, backing_written_bytes, backing_flushes
    }
}

impl Seen {
    fn takes(&mut self, kind: RequestKind, len: u64) {
        match kind {
            RequestKind::Read => {
                self.reads += 1;
                self.read_bytes += len;
            }
            RequestKind::Write { .. } => {
                self.writes += 1;
                self.written_bytes += len;
            }
            RequestKind::Flush => self.flushes += 1,
            RequestKind::Discard { .. } | RequestKind::WriteZeroes { .. } => self.zeroes += 1,
            RequestKind::Prefetch => {}
        }
    }
}

/// Counters that the pool and each volume have.
macro_rules! counted_twice {
    (@ $stats:ident: $($name:ident)*) => {
        [$($stats.$name,)* $stats.sequential_bypassed_reads + $stats.sequential_bypassed_writes]
    };
    ($stats:ident) => {
        counted_twice!(@ $stats: reads writes flushes zeroes read_bytes written_bytes failed_requests read_time_ns
            write_time_ns flush_time_ns read_hit_blocks read_miss_blocks read_bypass_blocks read_sequential_blocks
            write_bypass_blocks write_sequential_blocks filled_blocks read_invalidated_blocks fill_cancelled_blocks
            fill_no_room_blocks lock_waits direct_waits dirtied_blocks destaged_blocks evicted_blocks
            throttled_writes)
    };
}

/// A request: its kind, volume and length, and the time of submission.
pub(crate) type Asked = (RequestKind, (VolumeId, u64), u64);

impl Books {
    /// Counts an action of the engine.
    pub(crate) fn note_action(&mut self, action: &IoAction, engine: &Engine) {
        let done = &mut self.seen.operations;
        match *action {
            IoAction::Read { device: Device::Cache, len, .. } => {
                done.cache_reads += 1;
                done.cache_read_bytes += u64::from(len);
            }
            IoAction::Read { device: Device::Backing(_), len, .. } => {
                done.backing_reads += 1;
                done.backing_read_bytes += u64::from(len);
            }
            IoAction::Write { device: Device::Cache, len, .. } => {
                done.cache_writes += 1;
                done.cache_written_bytes += u64::from(len);
            }
            IoAction::WriteMeta { op, .. } => {
                done.cache_writes += 1;
                done.cache_written_bytes += engine.meta(op).len() as u64;
            }
            IoAction::Write { device: Device::Backing(_), len, .. } => {
                done.backing_writes += 1;
                done.backing_written_bytes += u64::from(len);
            }
            IoAction::Flush { device: Device::Backing(_), .. } => done.backing_flushes += 1,
            IoAction::Flush { device: Device::Cache, .. }
            | IoAction::ReadMeta { .. }
            | IoAction::FlushMember { .. }
            | IoAction::Zero { .. }
            | IoAction::DiscardSegment { .. }
            | IoAction::Copy { .. }
            | IoAction::FillZero { .. }
            | IoAction::Crc { .. } => {}
        }
    }

    /// Notes that a device had ended.
    pub(crate) fn note_ended(&mut self) {
        self.ended = true;
    }

    /// Returns true if a device had ended at any time.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Counts bytes written to a part of the cache.
    pub(crate) fn note_written(&mut self, part: usize, bytes: u64) {
        self.written[part].1 += bytes;
    }

    /// Counts bytes written to the target of a copy. Returns its key.
    pub(crate) fn note_copied(&mut self, bytes: u64) -> u64 {
        self.new.1 += bytes;
        self.seen.operations.cache_writes += 1;
        self.seen.operations.cache_written_bytes += bytes;
        self.new.0
    }

    /// Notes that the target of a copy has replaced these parts. Returns the keys of all parts.
    /// `held`: the owner has not started all requested operations.
    pub(crate) fn note_taken_over(&mut self, parts: &[usize], held: bool) -> [u64; PARTS.len()] {
        self.strayed |= held;
        for part in parts {
            self.written[*part] = self.new;
            self.new = (self.new.0 + 1, 0);
        }
        self.written.map(|(key, _)| key)
    }

    /// Notes that the copy was given up.
    pub(crate) fn note_given_up(&mut self) {
        self.new = (self.new.0 + 1, 0);
    }

    /// Notes that a volume was attached or detached.
    pub(crate) fn note_moved(&mut self) {
        self.moved = true;
    }

    /// Counts a damaged block.
    pub(crate) fn note_damage(&mut self) {
        self.seen.damaged_blocks += 1;
    }

    /// Counts a checkpoint.
    pub(crate) fn note_checkpoint(&mut self) {
        self.seen.checkpoints += 1;
    }

    /// Checks the engine's report in the reply to a request, and counts the request.
    pub(crate) fn note_reply(&mut self, asked: Asked, reply: &OwnerAction, now: u64) -> Result<(), String> {
        let OwnerAction::Reply { result, path, took, volume, bytes, .. } = *reply else { return Ok(()) };
        let (kind, asked, since) = asked;
        ensure!(volume == asked.0 && bytes == asked.1, "{reply:?}, but {asked:?} was asked for");
        if path == RequestOutcome::Refused {
            ensure!(result.is_err() && took == 0, "{reply:?} of a request that was refused");
            return Ok(());
        }
        ensure!(took == now - since, "{reply:?}, but it took {} ns", now - since);
        let fits = match kind {
            RequestKind::Read => matches!(
                path,
                RequestOutcome::ReadHit | RequestOutcome::ReadMiss | RequestOutcome::ReadBypass
            ),
            RequestKind::Write { .. } => matches!(
                path,
                RequestOutcome::Write | RequestOutcome::WriteThrough | RequestOutcome::WritePast
            ),
            RequestKind::Flush => path == RequestOutcome::Flush,
            RequestKind::Discard { .. } | RequestKind::WriteZeroes { .. } => path == RequestOutcome::Zero,
            RequestKind::Prefetch => path == RequestOutcome::Prefetch,
        };
        ensure!(fits, "{reply:?} of {kind:?}");
        let seen = &mut self.seen;
        seen.takes(kind, bytes);
        seen.failed_requests += u64::from(result.is_err());
        match kind {
            RequestKind::Read => seen.read_time_ns += took,
            RequestKind::Write { .. } => seen.write_time_ns += took,
            RequestKind::Flush => seen.flush_time_ns += took,
            _ => {}
        }
        Ok(())
    }

    /// Compares the books with the counters of the engine. `open`: the requests in flight;
    /// `volumes`: their number, if all of them were attached at the opening; `held`: the owner has
    /// not started all requested operations, or a device that has ended refuses them.
    ///
    /// # Errors
    /// Names the difference.
    pub(crate) fn check(
        &self,
        engine: &Engine,
        open: &[Asked],
        volumes: Option<usize>,
        held: bool,
    ) -> Result<(), String> {
        let Self { mut seen, moved, ended, written, new, strayed } = *self;
        let stats = engine.stats();
        // Refused requests were answered at once.
        open.iter().for_each(|(kind, (_, len), _)| seen.takes(*kind, *len));
        let mut said = Seen::from(&stats);
        if ended {
            said.operations = seen.operations;
        }
        ensure!(said == seen, "the counters say {said:?}, and it was {seen:?}");
        let (sum, total) = (stats.written().total(), stats.cache_written_bytes);
        ensure!(sum == total, "the causes have {sum} bytes, and {total} were written: {:?}", stats.written());
        if !ended && !held && !strayed {
            for (key, got) in written.into_iter().chain([new]) {
                let said = engine.written_to(key).map_or(0, |written| written.total());
                ensure!(said == got, "device {key} got {got} bytes, and {said} are counted");
            }
        }
        let (in_flight, open) = (stats.requests_in_flight, open.len());
        ensure!(in_flight == open as u64, "{in_flight} requests are under way, and it is {open}");
        let stats_of = |id| engine.volume_stats(VolumeId(id));
        let known: Vec<VolumeStats> = (0..VOLUMES_MAX as u16).filter_map(stats_of).collect();
        let always = !moved && volumes == Some(known.len());
        let all = counted_twice!(stats);
        let mut sums = all.map(|_| 0);
        for volume in &known {
            sums.iter_mut().zip(counted_twice!(volume)).for_each(|(sum, one)| *sum += one);
        }
        let right = if always { sums == all } else { sums.iter().zip(all).all(|(sum, all)| *sum <= all) };
        ensure!(right, "the pool counts {all:?}, its volumes together {sums:?}");
        Ok(())
    }
}

//! Replies to requests.

use crate::api::{OwnerAction, RequestError, RequestKind, RequestOutcome};
use crate::context::Context;
use crate::map::CacheMap;
use forebay_format::VolumeId;

impl CacheMap {
    /// Returns the blocks of a volume that are not durable on the backing store, including older
    /// versions that ordered destage still has to write. Lost blocks are excluded.
    pub(crate) fn dirty_blocks(&self, volume: VolumeId) -> u64 {
        self.volumes.get(usize::from(volume.0)).map_or(0, |volume| volume.dirty)
    }
}

impl Context {
    /// Refuses a request that has had no effect and waits for a failing backing store (I85).
    pub(crate) fn refuse(&mut self, req: u32) {
        let request = self.reqs.get_mut(req);
        (request.failed, request.refused) = (true, true);
        self.reply(req);
    }

    /// Ends a request: sends the reply and frees the record.
    pub(crate) fn reply(&mut self, req: u32) {
        let path = self.path(req);
        let mut done = self.reqs.remove(req);
        assert!(done.pending == 0, "I1: a request is answered when all its parts have ended");
        if done.kind == RequestKind::Flush {
            let volume = self.volume_mut(done.volume);
            done.failed = volume.flush_fails(done.losses_reported, done.failed);
        }
        let result = match (done.failed, done.refused) {
            (false, _) => Ok(()),
            (true, false) => Err(RequestError::Io),
            (true, true) => Err(RequestError::Shutdown),
        };
        if done.kind == RequestKind::Flush {
            self.flush_answered(req, &done);
        }
        let took = self.now - done.started_at;
        self.counters.reply(done.volume, path, done.failed, took);
        if path == RequestOutcome::WritePast {
            self.count_write_past(&done);
        }
        self.stats.count_reply(done.kind, done.failed, took);
        self.volume_mut(done.volume).last_active = self.now;
        done.crcs.clear();
        self.spare_crcs.push(done.crcs);
        self.actions.push_owner(OwnerAction::Reply {
            request: done.id,
            result,
            path,
            took,
            volume: done.volume,
            bytes: done.len,
        });
    }

    /// Returns the path that a request took.
    fn path(&self, req: u32) -> RequestOutcome {
        let request = self.reqs.get(req);
        match request.kind {
            RequestKind::Read if !request.missed => RequestOutcome::ReadHit,
            RequestKind::Read if self.may_fill(req) => RequestOutcome::ReadMiss,
            RequestKind::Read => RequestOutcome::ReadBypass,
            RequestKind::Write { .. } if request.write_back => RequestOutcome::Write,
            RequestKind::Write { .. } if request.copies => RequestOutcome::WriteThrough,
            RequestKind::Write { .. } => RequestOutcome::WritePast,
            RequestKind::Flush => RequestOutcome::Flush,
            RequestKind::Discard { .. } | RequestKind::WriteZeroes { .. } => RequestOutcome::Zero,
            RequestKind::Prefetch => RequestOutcome::Prefetch,
        }
    }

    pub(crate) fn data_capacity(&self) -> u64 {
        let geometry = &self.map.geometry;
        debug_assert!(self.segments_staying() <= geometry.segment_count);
        self.capacity_of(self.members.segments_counted(self.segments_staying()))
    }
}

//! The clients' side of a world: submits requests and judges the replies.

use super::World;
use super::state::Pending;
use crate::content::Content;
use crate::disks::AttachState;
use crate::ensure::ensure;
use crate::oracle::{Way, WriteTicket};
use crate::rng::Rng;
use forebay_core::{BufId, OwnerAction, Request, RequestError, RequestId, RequestKind, Status, Treatment};
use forebay_format::checkpoint::Mode;
use forebay_format::{BLOCK_BYTES, SECTOR_BYTES, VolumeId};

const BLOCK: u64 = BLOCK_BYTES as u64;

impl World {
    /// Returns the number of requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.requests.len()
    }

    /// Runs until every request is answered.
    ///
    /// # Errors
    /// Any violation.
    pub fn wait_requests(&mut self) -> Result<(), String> {
        while !self.requests.is_empty() && !self.stopped {
            self.step(u64::MAX)?;
        }
        Ok(())
    }

    /// Reads, and judges the reply.
    ///
    /// # Errors
    /// Any violation.
    pub fn read(&mut self, volume: usize, offset: u64, len: u64) -> Result<(), String> {
        let treatment = self.treatment();
        self.make(volume, RequestKind::Read, (offset, len), treatment, false)
    }

    /// Makes acknowledged writes durable.
    ///
    /// # Errors
    /// Any violation.
    pub fn flush(&mut self, volume: usize) -> Result<(), String> {
        let treatment = self.treatment();
        self.make(volume, RequestKind::Flush, (0, 0), treatment, false)
    }

    /// Submits this request as given, independent of the plan. `kind` must not be a write that the
    /// oracle could not judge.
    ///
    /// # Errors
    /// Any violation.
    pub fn ask(
        &mut self,
        volume: usize,
        kind: RequestKind,
        range: (u64, u64),
        treatment: Treatment,
    ) -> Result<(), String> {
        self.make(volume, kind, range, treatment, false)
    }

    /// Submits a request that must be refused: beyond the end, empty, or for an unknown volume.
    ///
    /// # Errors
    /// Any violation.
    pub fn invalid(&mut self) -> Result<(), String> {
        let kind = if self.rng.chance(1, 2) { RequestKind::Read } else { RequestKind::Write { fua: false } };
        // A leaving volume would refuse any request for that reason.
        let Some(volume) = self.staying().first().copied() else { return Ok(()) };
        let end = self.disks.volumes[volume].bytes.max(self.disks.volumes[volume].resizing.unwrap_or(0));
        match self.rng.below(3) {
            0 => self.make_invalid(volume, kind, (end - 512, 1024)),
            1 => self.make_invalid(volume, kind, (0, 0)),
            _ => self.make_invalid(self.plan.volumes.len() + 3, kind, (0, BLOCK)),
        }
    }

    fn make_invalid(&mut self, volume: usize, kind: RequestKind, range: (u64, u64)) -> Result<(), String> {
        let treatment = self.treatment();
        self.make(volume, kind, range, treatment, true)
    }

    fn make(
        &mut self,
        volume: usize,
        kind: RequestKind,
        (offset, len): (u64, u64),
        treatment: Treatment,
        invalid: bool,
    ) -> Result<(), String> {
        let carries = matches!(kind, RequestKind::Read | RequestKind::Write { .. } | RequestKind::Prefetch);
        let lead = offset % BLOCK;
        let buffer =
            carries.then(|| self.memory.take((lead + len).next_multiple_of(BLOCK).max(BLOCK) as usize));
        self.destage_check.asked((lead + len).div_ceil(BLOCK));
        let ticket = match kind {
            RequestKind::Write { .. } | RequestKind::Discard { .. } | RequestKind::WriteZeroes { .. }
                if !invalid =>
            {
                self.note_touched(volume, offset, len);
                Some(self.announce(volume, (offset, len), buffer, treatment))
            }
            _ => None,
        };
        let mut crcs = Vec::new();
        let mut data_crc = 0;
        if let (RequestKind::Write { .. }, Some(buffer)) = (kind, buffer) {
            let bytes = self.memory.buffer(buffer);
            data_crc = crc32c::crc32c(&bytes[lead as usize..(lead + len) as usize]);
            crcs = block_crcs(bytes, lead, len, &mut self.rng);
        }
        let begun = match kind {
            RequestKind::Read => self.oracle.begin_read(),
            _ if ticket.is_some() => self.oracle.step(),
            _ => self.oracle.begin(),
        };
        let pending = Pending {
            volume,
            kind,
            offset,
            len,
            buffer,
            submitted_at: self.now,
            begun,
            ticket,
            errors: self.errors_near(volume),
            refusals: self.refusals,
            data_crc,
            invalid,
            refused: self.stopping || self.is_leaving(volume),
        };
        let id = self.next_request;
        self.next_request += 1;
        self.counters.requests += 1;
        self.digest.add_all(&[11, id, volume as u64, offset, len]);
        if self.verbose {
            self.say(&format!("request {id}: {pending:?}"));
        }
        self.requests.insert(id, pending);
        let request = Request {
            id: RequestId(id),
            volume: VolumeId(volume as u16),
            kind,
            offset,
            len,
            buf: buffer.map(BufId),
            treatment,
            block_crcs: &crcs,
        };
        self.engine.submit(self.now, request);
        self.pump()
    }

    /// Draws the treatment of the next request by the owner's rules.
    pub(crate) fn treatment(&mut self) -> Treatment {
        let ruled = self.plan.mix.rule_pct > 0 && self.rng.chance(self.plan.mix.rule_pct, 100);
        let kinds = [Treatment::Bypass, Treatment::Pin, Treatment::WriteThrough];
        if ruled { self.rng.pick(&kinds) } else { Treatment::Cache }
    }

    /// Tells the oracle the content that a write will leave, and puts it into the buffer.
    fn announce(
        &mut self,
        volume: usize,
        (offset, len): (u64, u64),
        buffer: Option<u32>,
        treatment: Treatment,
    ) -> WriteTicket {
        let rng = &mut self.rng;
        let zeroes = buffer.is_none() || rng.chance(1, 50);
        let start = offset - offset % BLOCK;
        let mut bytes = buffer.map(|buffer| self.memory.buffer(buffer));
        let past = [Mode::Writethrough, Mode::Writearound, Mode::Passthrough];
        let past = past.contains(&self.disks.settings[volume].mode)
            || self.disks.volumes[volume].ending
            || self.engine.runs_without_cache()
            || matches!(treatment, Treatment::Bypass | Treatment::WriteThrough);
        let way = match (past, buffer) {
            (true, Some(_)) => Way::Past,
            (false, Some(_)) => Way::Cached,
            (_, None) => Way::Either,
        };
        self.oracle.begin_write(volume, (offset, len), way, |sector, base, range| {
            let whole = range.len() == SECTOR_BYTES;
            let content = match (zeroes, whole) {
                (true, true) => Content::Zero,
                (false, true) => Content::Tag(rng.word() | 1),
                (true, false) => base.with(range.start, &[0; SECTOR_BYTES][range.clone()]),
                (false, false) => {
                    let mut part = [0; SECTOR_BYTES];
                    Content::Tag(rng.word()).fill(&mut part);
                    base.with(range.start, &part[range.clone()])
                }
            };
            if let Some(bytes) = bytes.as_mut() {
                let mut sector_bytes = [0; SECTOR_BYTES];
                content.fill(&mut sector_bytes);
                let at = (sector * SECTOR_BYTES as u64 - start) as usize;
                bytes[at + range.start..at + range.end].copy_from_slice(&sector_bytes[range]);
            }
            content
        })
    }

    fn is_leaving(&self, volume: usize) -> bool {
        self.disks.volumes.get(volume).is_some_and(|status| matches!(status.state, AttachState::Leaving(_)))
    }

    fn errors_near(&self, volume: usize) -> u64 {
        self.errors.get(1 + volume).copied().unwrap_or(0)
    }

    /// Judges a reply.
    pub(crate) fn reply(
        &mut self,
        reply: &OwnerAction,
        id: RequestId,
        result: Result<(), RequestError>,
    ) -> Result<(), String> {
        let pending = self.requests.remove(&id.0);
        let pending = pending.ok_or_else(|| format!("{id:?} was answered twice or never made"))?;
        self.books.note_reply(pending.asked(), reply, self.now)?;
        self.digest.add_all(&[12, id.0, u64::from(result.is_ok())]);
        let judged = match result {
            Ok(()) => self.judge_success(&pending),
            Err(why) => self.judge_failure(&pending, why),
        };
        if let Some(buffer) = pending.buffer {
            self.memory.release(buffer);
        }
        self.oracle.end_read(pending.begun);
        judged.map_err(|why| {
            format!("{id:?} ({:?} of {} at {}): {why}", pending.kind, pending.len, pending.offset)
        })
    }

    fn judge_success(&mut self, pending: &Pending) -> Result<(), String> {
        ensure!(!pending.invalid, "an invalid request succeeded");
        // After a fence a leaving volume is served again, although only a start can reveal the
        // result of its detach.
        ensure!(!pending.refused || self.fenced, "a request made during a shutdown succeeded");
        let volume = pending.volume;
        match (pending.kind, pending.buffer) {
            (RequestKind::Read, Some(buffer)) => {
                let lead = (pending.offset % BLOCK) as usize;
                let bytes = &self.memory.buffer(buffer)[lead..lead + pending.len as usize];
                self.digest.add(u64::from(crc32c::crc32c(&bytes[..bytes.len().min(16)])));
                self.oracle.check_read(volume, pending.offset, bytes, pending.begun)
            }
            (RequestKind::Flush, _) => {
                self.check_flush(volume, pending.begun)?;
                self.oracle.flushed(volume, pending.begun);
                Ok(())
            }
            (RequestKind::Write { fua }, Some(buffer)) => {
                let lead = (pending.offset % BLOCK) as usize;
                let bytes = &self.memory.buffer(buffer)[lead..lead + pending.len as usize];
                ensure!(crc32c::crc32c(bytes) == pending.data_crc, "the engine changed the data of a client");
                self.acknowledge(pending, fua)
            }
            (RequestKind::Discard { fua } | RequestKind::WriteZeroes { fua, .. }, _) => {
                self.acknowledge(pending, fua)
            }
            _ => Ok(()),
        }
    }

    fn leaves(&self, volume: usize) -> bool {
        matches!(self.disks.volumes[volume].state, AttachState::Leaving(_))
    }

    fn acknowledge(&mut self, pending: &Pending, fua: bool) -> Result<(), String> {
        if let Some(ticket) = pending.ticket {
            self.oracle.end_write(ticket, true, fua);
        }
        self.note_healed(pending.volume, pending.offset, pending.len)
    }

    fn judge_failure(&mut self, pending: &Pending, why: RequestError) -> Result<(), String> {
        if let Some(ticket) = pending.ticket {
            self.oracle.end_write(ticket, false, false);
        }
        match why {
            RequestError::Invalid => {
                // A volume that was leaving when the cache was fenced may already be gone from it.
                let id = VolumeId(pending.volume as u16);
                let gone = self.fenced && self.engine.volume_size_bytes(id).is_none();
                ensure!(pending.invalid || gone, "refused as invalid");
            }
            RequestError::Shutdown => {
                // A stop or a detach refuses a write that waits for a failing store (I85).
                let waits =
                    matches!(pending.kind, RequestKind::Read | RequestKind::Flush | RequestKind::Prefetch);
                let ends = self.stopping || self.leaves(pending.volume);
                let in_vain = ends && !waits && self.had_errors();
                ensure!(
                    pending.refused || in_vain || self.engine.status() != Status::Ready,
                    "refused without a shutdown"
                );
            }
            RequestError::Io => {
                self.counters.io_errors += 1;
                ensure!(self.may_fail(pending), "an I/O error without a cause");
                if pending.kind == RequestKind::Flush {
                    self.told_at[pending.volume] = Some(self.oracle.begin());
                    if self.plan.drops_past {
                        self.oracle.dropped(pending.volume);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns true if an I/O error is legal: where the only copy was damaged, where a backing
    /// store failed while the request was in flight, for every change while the owner cannot record
    /// a cache failure, and once for a FLUSH after a loss. A failure of the cache device alone is
    /// no reason.
    fn may_fail(&self, pending: &Pending) -> bool {
        let volume = pending.volume;
        let changes = !matches!(pending.kind, RequestKind::Read | RequestKind::Prefetch);
        let refused = changes && (self.refused || self.refusals > pending.refusals);
        if self.errors_near(volume) > pending.errors || refused {
            return true;
        }
        if pending.kind == RequestKind::Flush {
            // A start after damage may find losses that no earlier FLUSH has reported.
            if self.oracle.relaxed {
                return true;
            }
            let told = self.told_at[volume].filter(|told| *told < pending.begun);
            let untold = |at: Option<u64>| at.is_some_and(|at| told.is_none_or(|told| told < at));
            return untold(self.lost_at[volume]) || untold(self.flush_failed_at[volume]);
        }
        if self.without_cache {
            return self.is_any_at_risk(pending);
        }
        let (first, end) = (pending.offset / BLOCK, (pending.offset + pending.len).div_ceil(BLOCK));
        self.is_any_tainted(volume, first, end) || self.oracle.is_any_unknown(volume, first, end)
    }

    fn is_any_tainted(&self, volume: usize, first: u64, end: u64) -> bool {
        self.oracle.tainted.range((volume, first)..(volume, end)).next().is_some()
    }

    /// Returns true for a read of a lost sector, or a write of a part of one.
    fn is_any_at_risk(&self, pending: &Pending) -> bool {
        let sector = SECTOR_BYTES as u64;
        let end = pending.offset + pending.len;
        let touched = pending.offset / sector..end.div_ceil(sector);
        let whole = pending.offset.div_ceil(sector)..end / sector;
        let reads = matches!(pending.kind, RequestKind::Read | RequestKind::Prefetch);
        let mut lost = self.risk.range((pending.volume, touched.start)..(pending.volume, touched.end));
        lost.any(|lost| {
            let healed = self.healed.get(lost).is_some_and(|at| *at < pending.begun);
            !healed && (reads || !whole.contains(&lost.1))
        })
    }
}

/// Computes checksums as a client's owner does; those that the engine must ignore are junk.
fn block_crcs(bytes: &[u8], lead: u64, len: u64, rng: &mut Rng) -> Vec<u32> {
    let junk = rng.word() as u32;
    let blocks = (lead + len).div_ceil(BLOCK);
    (0..blocks)
        .map(|block| {
            if block * BLOCK < lead || (block + 1) * BLOCK > lead + len {
                return junk;
            }
            crc32c::crc32c(&bytes[(block * BLOCK) as usize..((block + 1) * BLOCK) as usize])
        })
        .collect()
}

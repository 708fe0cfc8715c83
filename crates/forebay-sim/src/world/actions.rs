//! The owner's side of a world: performs the engine's actions and completes its device operations.
//!
//! Checks the rules of `forebay_core::api` here. Any violation ends the run.

use super::World;
use super::copying::Copies;
use super::state::{Flight, FlightKind, Sampled};
use crate::cipher::{self, CacheWrite};
use crate::device::{OpKind, SimDevice, WriteEnd};
use crate::disks::{AttachState, CACHE, MemberNotes, device_of};
use crate::ensure::ensure;
use crate::memory::{JUNK, overlap};
use crate::start::second_half;
use forebay_core::{
    Action, Device, DeviceFailure, IoAction, Notice, OpId, OwnerAction, PlantedBug, Span, Status, WASTE,
    fault,
};
use forebay_format::geometry::CHECKPOINT_START_BLOCK;
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, Geometry, SECTOR_BYTES, VolumeId};
use std::rc::Rc;

impl World {
    pub(crate) fn perform(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Io(action) => {
                self.books.note_action(&action, &self.engine);
                self.note_endurance(&action)?;
                if self.hold(action)? { Ok(()) } else { self.start(action) }
            }
            Action::Owner(action) => self.handle(action),
        }
    }

    pub(crate) fn start(&mut self, action: IoAction) -> Result<(), String> {
        match action {
            IoAction::Read { op, device, offset, len, crc } => self.start_read(op, device, offset, len, crc),
            IoAction::Write { op, device, offset, len } => self.start_write(op, device, offset, len),
            IoAction::ReadMeta { op, offset, len } => {
                self.digest.add_all(&[3, offset, u64::from(len)]);
                let (device, offset) = self.cache_at(offset);
                self.check_range(device, offset, u64::from(len), BLOCK_BYTES)?;
                let kind = FlightKind::ReadMeta { offset, len: len as usize };
                self.launch(op, OpKind::Read, u64::from(len), Flight { device, spans: Vec::new(), kind })
            }
            IoAction::WriteMeta { op, offset } => self.start_write_meta(op, offset),
            IoAction::Flush { op, device } => {
                let device = self.device(device)?;
                ensure!(device != CACHE || self.plan.mirror.is_none(), "a flush of no member");
                self.start_flush(op, device)
            }
            IoAction::FlushMember { op, member } => {
                ensure!(self.plan.mirror.is_some(), "a flush of a member, but the cache is not mirrored");
                self.start_flush(op, device_of(&self.plan, usize::from(member)))
            }
            IoAction::Zero { op, volume, offset, len, .. } => {
                let device = self.device(Device::Backing(volume))?;
                self.submit_write(op, device, offset, Vec::new(), vec![0; len as usize], 0)
            }
            IoAction::DiscardSegment { op, offset, len } => self.start_discard(op, offset, len),
            IoAction::Copy { from, to } => {
                self.check_untouched(from)?;
                self.check_untouched(to)?;
                self.memory.copy(from, to)
            }
            IoAction::FillZero { span } => {
                self.check_untouched(span)?;
                self.memory.get_mut(span)?.fill(0);
                Ok(())
            }
            IoAction::Crc { op, span } => {
                ensure!(span.len as usize <= BLOCK_BYTES, "checksum of more than a block: {span:?}");
                self.check_untouched(span)?;
                let crc = crc32c::crc32c(self.memory.get(span)?);
                self.digest.add_all(&[9, u64::from(crc)]);
                self.engine.complete(self.now, op, Ok(()), &[crc]);
                Ok(())
            }
        }
    }

    fn handle(&mut self, action: OwnerAction) -> Result<(), String> {
        match action {
            OwnerAction::Reply { request, result, .. } => {
                let buffer = self.requests.get(&request.0).and_then(|pending| pending.buffer);
                if let Some(buffer) = buffer {
                    let used = self.flights.values().flat_map(|flight| &flight.spans);
                    ensure!(
                        used.clone().all(|span| span.buf.0 != buffer),
                        "request {request:?} was answered while a device operation uses its buffer"
                    );
                }
                self.reply(&action, request, result)
            }
            OwnerAction::Notice(notice) => self.notice(notice),
            OwnerAction::VolumeQuiet { volume } => self.volume_quiet(volume),
            OwnerAction::Quiesced => {
                ensure!(self.stopping && self.requests.is_empty(), "quiesced too early");
                self.quiesced = true;
                Ok(())
            }
            OwnerAction::RecordLoss { ticket } => self.record_loss(ticket),
            OwnerAction::RecordOut { ticket, member } => self.record_out(ticket, member),
            OwnerAction::Closed => {
                ensure!(self.quiesced && self.flights.is_empty(), "closed too early");
                self.closed = true;
                Ok(())
            }
        }
    }

    fn start_flush(&mut self, op: OpId, device: usize) -> Result<(), String> {
        self.digest.add_all(&[5, device as u64]);
        let covered = self.disks.devices[device].submit_flush();
        let ended = self.is_short(device);
        let kind = if ended { FlightKind::Refused } else { FlightKind::Flush { covered } };
        let flight = Flight { device, spans: Vec::new(), kind };
        self.launch(op, OpKind::Flush, 0, flight)?;
        if !ended {
            self.flush_second(op, device);
        }
        self.crash_point();
        Ok(())
    }

    fn start_read(
        &mut self,
        op: OpId,
        device: Device,
        offset: u64,
        len: u32,
        crc: bool,
    ) -> Result<(), String> {
        let mut device = self.device(device)?;
        self.digest.add_all(&[1, device as u64, offset, u64::from(len), u64::from(crc)]);
        let mut offset = offset;
        if device == CACHE {
            (device, offset) = self.cache_at(offset);
        }
        self.check_range(device, offset, u64::from(len), SECTOR_BYTES)?;
        let discarded = self.flights.values().any(|flight| flight.discards(device, offset, u64::from(len)));
        ensure!(!discarded, "a read of {len} bytes at {offset} while they are discarded");
        let spans = self.engine.spans(op).to_vec();
        let total: u64 = spans.iter().map(|span| u64::from(span.len)).sum();
        ensure!(total == u64::from(len), "a read of {len} bytes has spans of {total}: {spans:?}");
        for span in spans.iter().filter(|span| **span != WASTE) {
            self.check_untouched(*span)?;
            let idle =
                self.flights.values().flat_map(|flight| &flight.spans).all(|used| !overlap(*used, *span));
            ensure!(idle, "a read of {offset} goes to {span:?}, which another operation uses");
            self.memory.get_mut(*span)?.fill(JUNK);
        }
        let early = self.rng.chance(1, 3).then(|| self.sample_data(device, offset, len as usize));
        let kind = FlightKind::Read { offset, len: len as usize, crc, early };
        self.launch(op, OpKind::Read, u64::from(len), Flight { device, spans, kind })
    }

    fn start_write(&mut self, op: OpId, device: Device, offset: u64, len: u32) -> Result<(), String> {
        let device = self.device(device)?;
        let spans = self.engine.spans(op).to_vec();
        let mut data = Vec::with_capacity(len as usize);
        let header = self.engine.header(op).map_or(0, <[u8]>::len);
        if let Some(header) = self.engine.header(op) {
            ensure!(device == CACHE && header.len() == BLOCK_BYTES, "a header of {} bytes", header.len());
            data.extend_from_slice(header);
        }
        self.memory.gather(&spans, &mut data)?;
        ensure!(data.len() == len as usize, "a write of {len} bytes has {} bytes", data.len());
        if device == CACHE {
            self.check_cache_write(offset, u64::from(len))?;
            if header > 0 {
                self.disks.log.batch(offset, &data[..header])?;
            }
        }
        if device == CACHE {
            return self.submit_to_cache(op, offset, spans, data, header);
        }
        self.submit_write(op, device, offset, spans, data, header)
    }

    fn submit_to_cache(
        &mut self,
        op: OpId,
        offset: u64,
        spans: Vec<Span>,
        data: Vec<u8>,
        header: usize,
    ) -> Result<(), String> {
        let (device, offset) = self.cache_at(offset);
        self.check_member_write(device)?;
        self.submit_write(op, device, offset, spans, data, header)
    }

    fn start_write_meta(&mut self, op: OpId, offset: u64) -> Result<(), String> {
        let data = self.engine.meta(op).to_vec();
        let (end, len) = (self.plan.geometry.segments_start_block * BLOCK_BYTES as u64, data.len() as u64);
        let (device, local) = self.cache_at(offset);
        if local < end {
            ensure!(local + len <= end, "metadata of {len} bytes at {local} beyond {end}");
            if self.plan.mirror.is_some() {
                self.check_new_member(device, local, &data)?;
            }
        } else {
            // A summary, which is a batch, or, at a start, the rewrite of parts of batches that a
            // member lacks or that may not be durable.
            self.check_cache_write(offset, len)?;
            if self.engine.status() == Status::Opening {
                self.check_rewrite(offset, &data)?;
            } else {
                self.disks.log.batch(offset, data.get(..BLOCK_BYTES).unwrap_or_default())?;
            }
        }
        self.submit_to_cache(op, offset, Vec::new(), data, 0)
    }

    fn start_discard(&mut self, op: OpId, offset: u64, len: u64) -> Result<(), String> {
        let discards = self.plan.discards;
        ensure!(self.engine.status() == Status::Ready, "a discard of an engine that does not serve");
        ensure!(len == self.plan.geometry.segment_bytes(), "a discard of {len} bytes is of no segment");
        self.check_cache_write(offset, len)?;
        let (device, offset) = self.cache_at(offset);
        self.digest.add_all(&[18, device as u64, offset, len]);
        self.check_range(device, offset, len, BLOCK_BYTES)?;
        ensure!(self.disks.devices[device].idle(offset, len), "a discard at {offset} beside a write");
        let read = self.flights.values().any(|flight| flight.reads(device, offset, len));
        ensure!(!read, "a discard at {offset} while it is read");
        let time = self.rng.below(discards.ns_max + 1)
            + self.disks.devices[device].time(OpKind::Write, 0, &mut self.rng);
        let fails = self.rng.ppm(discards.error_ppm);
        let kind = if self.is_short(device) || discards.refuses {
            FlightKind::RefusedDiscard
        } else {
            let number = self.disks.devices[device].submit_discard(offset, len, fails, &mut self.rng);
            FlightKind::Discard { number, offset, len }
        };
        self.enqueue(op, self.now + time, Flight { device, spans: Vec::new(), kind })?;
        self.crash_point();
        Ok(())
    }

    /// Checks a rewrite at a start: only bytes that are there already may be written to segments,
    /// or, to a member of a mirrored cache, those that it lacks.
    fn check_rewrite(&mut self, offset: u64, data: &[u8]) -> Result<(), String> {
        self.rewrites += 1;
        if self.plan.mirror.is_some() || self.plan.faults.damages() {
            return Ok(());
        }
        let mut there = vec![0; data.len()];
        self.disks.devices[CACHE].visible().read(offset, &mut there);
        cipher::open(&self.plan, offset, &mut there);
        ensure!(there == data, "a start changes {} bytes at {offset}", data.len());
        Ok(())
    }

    fn submit_write(
        &mut self,
        op: OpId,
        device: usize,
        offset: u64,
        spans: Vec<Span>,
        data: Vec<u8>,
        header: usize,
    ) -> Result<(), String> {
        let len = data.len() as u64;
        self.digest.add_all(&[2, device as u64, offset, len]);
        let unit = if self.is_cache(device) {
            BLOCK_BYTES
        } else {
            self.plan.volumes[device - 1].sector_bytes as usize
        };
        self.check_range(device, offset, len, unit)?;
        ensure!(
            self.disks.devices[device].idle(offset, len) || !self.is_cache(device),
            "two writes to {offset} at once"
        );
        if !self.is_cache(device) {
            let volume = device - 1;
            let oldest = self.requests.first_key_value().map(|(id, _)| *id);
            self.destage_check.wrote(volume, self.now, len, &self.disks.settings[volume], oldest)?;
        }
        if self.is_short(device) {
            return self.launch(op, OpKind::Write, len, Flight { device, spans, kind: FlightKind::Refused });
        }
        let data = Rc::new(data);
        let bytes = match &self.plan.cipher {
            Some(_) if device == CACHE => Rc::new(self.encrypt(offset, header, &data)),
            _ => Rc::clone(&data),
        };
        if let Some(part) = self.part_of(device, offset) {
            self.books.note_written(part, len);
        }
        let number = self.disks.devices[device].submit_write(offset, Rc::clone(&bytes), &mut self.rng);
        let kind = FlightKind::Write { number, offset, data, header };
        self.launch(op, OpKind::Write, len, Flight { device, spans, kind })?;
        self.write_second(op, device, offset, &bytes);
        self.crash_point();
        Ok(())
    }

    /// Returns the part of the cache that this byte of the device belongs to.
    fn part_of(&self, device: usize, offset: u64) -> Option<usize> {
        match self.is_cache(device) {
            true if self.plan.mirror.is_some() => Some(usize::from(device != CACHE)),
            true => Some(usize::from(offset >= second_half(&self.plan.geometry))),
            false => None,
        }
    }

    fn note_endurance(&mut self, action: &IoAction) -> Result<(), String> {
        let (IoAction::Write { op, device: Device::Cache, .. } | IoAction::WriteMeta { op, .. }) = *action
        else {
            return Ok(());
        };
        let sound = self.engine.stats().cache_write_errors == 0 && !self.books.has_ended();
        self.endurance_check.note(&self.engine.written_by(op), self.now, sound)
    }

    /// Returns the bytes of a write as the cache device gets them.
    fn encrypt(&mut self, offset: u64, header: usize, data: &[u8]) -> Vec<u8> {
        // A failed batch is rewritten elsewhere: with the same length, and the same except for its
        // header.
        let len = data.len() as u64;
        let failed = if header > 0 { self.unwritten.take() } else { None };
        let failed = failed.filter(|(_, long)| *long == len).map(|(place, _)| place);
        cipher::encrypt(&self.plan, CacheWrite { offset, meta: header == 0 }, failed, data)
    }

    fn launch(&mut self, op: OpId, kind: OpKind, len: u64, flight: Flight) -> Result<(), String> {
        let begins = self.begins_at(flight.device, kind);
        let time = begins + self.disks.devices[flight.device].time(kind, len, &mut self.rng);
        self.enqueue(op, time, flight)
    }

    pub(crate) fn device(&self, device: Device) -> Result<usize, String> {
        match device {
            Device::Cache if self.without_cache => Err("the cache is used, but there is none".into()),
            Device::Cache => Ok(CACHE),
            Device::Backing(VolumeId(volume)) if usize::from(volume) < self.plan.volumes.len() => {
                let status = &self.disks.volumes[usize::from(volume)];
                let ours = !matches!(status.state, AttachState::Gone | AttachState::Kept);
                ensure!(ours, "the backing store of volume {volume} is used after it was let go");
                Ok(1 + usize::from(volume))
            }
            Device::Backing(_) => Err(format!("{device:?} does not exist")),
        }
    }

    fn check_range(&self, device: usize, offset: u64, len: u64, unit: usize) -> Result<(), String> {
        let unit = unit as u64;
        let bytes = match device {
            cache if self.is_cache(cache) => self.disks.devices[cache].bytes(),
            device => {
                let status = &self.disks.volumes[device - 1];
                status.bytes.max(status.resizing.unwrap_or(0))
            }
        };
        let inside = len > 0 && offset.checked_add(len).is_some_and(|end| end <= bytes);
        ensure!(inside, "{len} bytes at {offset} of device {device} with {bytes} bytes");
        let aligned = offset.is_multiple_of(unit) && len.is_multiple_of(unit);
        ensure!(aligned, "{len} bytes at {offset} of device {device}: unit is {unit}");
        Ok(())
    }

    fn check_cache_write(&self, offset: u64, len: u64) -> Result<(), String> {
        let geometry = &self.plan.geometry;
        let start = geometry.segments_start_block * BLOCK_BYTES as u64;
        let end = self.disks.cache_bytes.max(self.disks.cache_pending.unwrap_or(0));
        ensure!(start <= offset && offset + len <= end, "{len} bytes at {offset}: outside the segments");
        let bytes = geometry.segment_bytes();
        let (first, last) = ((offset - start) / bytes, (offset + len - 1 - start) / bytes);
        ensure!(first == last, "{len} bytes at {offset} cross the end of segment {first}");
        Ok(())
    }

    /// Checks that no device is reading into this memory.
    fn check_untouched(&self, span: Span) -> Result<(), String> {
        for flight in self.flights.values() {
            let reads = match &flight.kind {
                FlightKind::Held(held) => held.is_read(),
                kind => matches!(kind, FlightKind::Read { .. }),
            };
            if reads {
                let clash = flight.spans.iter().any(|used| overlap(*used, span));
                ensure!(!clash, "{span:?} is used while a device reads into it");
            }
        }
        Ok(())
    }

    /// Returns the result of a read of a device at this instant.
    fn sample(&mut self, device: usize, offset: u64, len: usize) -> Sampled {
        let mut bytes = vec![0; len];
        let good = self.disks.devices[device].read(offset, &mut bytes, &mut self.rng);
        self.read_to_end(device, offset, &mut bytes)?;
        if device == CACHE {
            cipher::open(&self.plan, offset, &mut bytes);
        }
        if good { Ok(bytes) } else { Err(DeviceFailure::Failed) }
    }

    /// Like [`Self::sample`], for data: during an outage the cache device fails these reads.
    fn sample_data(&mut self, device: usize, offset: u64, len: usize) -> Sampled {
        let unreadable = self.is_cache(device) && self.unreadable_until.is_some_and(|until| self.now < until);
        if unreadable { Err(DeviceFailure::Failed) } else { self.sample(device, offset, len) }
    }

    pub(crate) fn finish(&mut self, op: u32) -> Result<(), String> {
        if Copies::is_of_copy(op) {
            return self.copy_finished(op);
        }
        self.swap_retired(op);
        let finished = self.finish_flight(op);
        self.swap_back();
        finished?;
        let acted = self.pump();
        if !self.requests.is_empty() || !self.flights.is_empty() {
            self.crash_point();
        }
        acted
    }

    fn finish_flight(&mut self, op: u32) -> Result<(), String> {
        let Some(Flight { device, spans, kind }) = self.flights.remove(&op) else {
            return Err(format!("operation {op} has ended before"));
        };
        self.counters.device_ops += 1;
        self.digest.add_all(&[17, u64::from(op), self.now]);
        if self.verbose {
            self.say(&format!("done {op}"));
        }
        match kind {
            FlightKind::Read { offset, len, crc, early } => {
                let bytes = early.unwrap_or_else(|| self.sample_data(device, offset, len));
                self.finish_read(op, device, &spans, offset, len, crc, bytes)?;
            }
            FlightKind::ReadMeta { offset, len } => {
                let bytes = self.sample(device, offset, len);
                if bytes.is_err() {
                    self.fault(device, offset, len as u64);
                }
                let bytes = bytes.as_deref().map_err(|failure| *failure);
                self.engine.complete_meta(self.now, OpId(op), bytes);
            }
            FlightKind::Write { number, offset, data, header } => {
                let mut now = Vec::with_capacity(data.len());
                self.memory.gather(&spans, &mut now)?;
                ensure!(
                    spans.is_empty() || now == data[header..],
                    "the bytes of a write at {offset} changed under way"
                );
                let end = self.finish_write(op, device, number)?;
                if end == WriteEnd::Failed && device == CACHE && header > 0 {
                    self.unwritten = Some((offset, data.len() as u64));
                }
                self.crash_point();
            }
            FlightKind::Discard { number, .. } => {
                let good = self.disks.devices[device].complete_write(number) == WriteEnd::Good;
                // An error has no consequences.
                self.counters.faults += u64::from(!good);
                let result = if good { Ok(()) } else { Err(DeviceFailure::Failed) };
                self.engine.complete(self.now, OpId(op), result, &[]);
                self.crash_point();
            }
            FlightKind::RefusedDiscard => {
                let failure = if self.plan.discards.refuses {
                    DeviceFailure::Unsupported
                } else {
                    DeviceFailure::Ended
                };
                self.engine.complete(self.now, OpId(op), Err(failure), &[]);
            }
            FlightKind::Held(held) => self.start_held(&held)?,
            FlightKind::Refused => {
                self.note_failed_flush(device);
                self.finish_ended(op, device, 0, 0)?;
            }
            FlightKind::Flush { .. } if self.is_short(device) => {
                self.note_failed_flush(device);
                self.finish_ended(op, device, 0, 0)?;
            }
            FlightKind::Flush { covered } => {
                let good = self.disks.devices[device].complete_flush(covered, &mut self.rng);
                // The engine distrusts the first flush after a store was reopened.
                let counts = !self.reopened.remove(&device);
                self.disks.flush_failed[device] = !good || !counts;
                if !good || !counts {
                    self.note_failed_flush(device);
                    self.fault(device, 0, 0);
                }
                let result = if good { Ok(()) } else { Err(DeviceFailure::Failed) };
                self.complete(op, result);
                self.crash_point();
            }
        }
        Ok(())
    }

    /// Notes that a flush of a backing store may have failed: a FLUSH may report it.
    fn note_failed_flush(&mut self, device: usize) {
        // The other member of a mirrored cache has a number behind the backing stores.
        let volume = device.checked_sub(1).filter(|volume| *volume < self.flush_failed_at.len());
        if let Some(volume) = volume {
            self.flush_failed_at[volume] = Some(self.oracle.begin());
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one operation, used once")]
    fn finish_read(
        &mut self,
        op: u32,
        device: usize,
        spans: &[Span],
        offset: u64,
        len: usize,
        crc: bool,
        bytes: Sampled,
    ) -> Result<(), String> {
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(DeviceFailure::Ended) => return self.finish_ended(op, device, offset, len as u64),
            Err(failure) => {
                // A temporary outage must not lose anything.
                let passes = device == CACHE && self.plan.outage.is_some();
                self.fault(device, offset, if passes { 0 } else { len as u64 });
                self.engine.complete(self.now, OpId(op), Err(failure), &[]);
                return Ok(());
            }
        };
        self.memory.scatter(spans, &bytes)?;
        let crcs: Vec<u32> =
            if crc { bytes.chunks(BLOCK_BYTES).map(crc32c::crc32c).collect() } else { Vec::new() };
        self.engine.complete(self.now, OpId(op), Ok(()), &crcs);
        Ok(())
    }

    /// Completes an operation of a device that had ended.
    fn finish_ended(&mut self, op: u32, device: usize, offset: u64, len: u64) -> Result<(), String> {
        self.note_ended(device, offset, len);
        self.engine.complete(self.now, OpId(op), Err(DeviceFailure::Ended), &[]);
        self.check_ended(device)
    }

    fn finish_write(&mut self, op: u32, device: usize, number: u64) -> Result<WriteEnd, String> {
        let end = self.disks.devices[device].complete_write(number);
        let mut result = Ok(());
        match end {
            WriteEnd::Good => {}
            WriteEnd::Failed => {
                self.fault(device, 0, 0);
                result = Err(DeviceFailure::Failed);
            }
            WriteEnd::Lost { .. } if self.plan.mirror.is_some() => {
                self.note_harm(usize::from(device != CACHE))
            }
            WriteEnd::Lost { offset, len } => self.damage(offset, len),
            WriteEnd::Misdirected { offset, landed, len } => {
                self.damage(offset, len);
                self.damage(landed, len);
            }
        }
        self.complete(op, result);
        Ok(end)
    }

    /// Notes an error that a device is about to report.
    pub(crate) fn fault(&mut self, device: usize, offset: u64, len: u64) {
        self.counters.faults += 1;
        self.errors[device] += 1;
        if self.plan.mirror.is_some() {
            // One member of two: the other one has a copy of the dirty data.
            self.errors[CACHE] += u64::from(device != CACHE && self.is_cache(device));
        } else if device == CACHE && len > 0 {
            self.oracle.tainted.extend(self.disks.log.hit(offset, len));
        }
    }

    /// Notes that the cache device has lost or changed bytes silently.
    pub fn damage(&mut self, offset: u64, len: u64) {
        self.counters.faults += 1;
        self.errors[CACHE] += 1;
        self.disks.damaged = true;
        self.disks.log.note_damage(offset, len);
        self.oracle.tainted.extend(self.disks.log.hit(offset, len));
    }

    /// Checks that the device, or each member that counts, holds the engine's snapshot.
    fn check_checkpoint(&mut self, generation: u64) -> Result<(), String> {
        let damages = self.plan.faults.damages() || self.disks.damaged;
        // The engine may have taken the next snapshot already.
        let snapshot = self.engine.last_snapshot().filter(|snapshot| snapshot.generation == generation);
        let Some(snapshot) = snapshot.filter(|_| !damages) else { return Ok(()) };
        let members = if self.plan.mirror.is_some() { 2 } else { 1 };
        let superblocks: Vec<_> = (0..members)
            .map(|member| {
                let block = self.read_meta(member, Geometry::superblock_offset(0), BLOCK_BYTES);
                Superblock::decode(&block).ok()
            })
            .collect();
        let newest = superblocks.iter().flatten().map(|found| found.generation).max();
        for (member, superblock) in superblocks.iter().enumerate() {
            let Some(superblock) = superblock.as_ref().filter(|found| Some(found.generation) == newest)
            else {
                continue;
            };
            for copy in 0..2 {
                let (offset, len) = superblock.checkpoint_place(copy);
                let found = superblock
                    .read_checkpoint(&self.read_meta(member, offset, len as usize))
                    .map_err(|error| format!("member {member}, copy {copy} of the checkpoint: {error}"))?;
                ensure!(found == *snapshot, "member {member}, copy {copy} of the checkpoint is no snapshot");
            }
        }
        ensure!(newest.is_some(), "a checkpoint is in effect, but there is no superblock A");
        Ok(())
    }

    /// Reads metadata of a member of the cache.
    fn read_meta(&self, member: usize, offset: u64, len: usize) -> Vec<u8> {
        let (device, offset) = self.cache_at(self.plan.geometry.mirror_meta(member, offset));
        let mut bytes = vec![0; len];
        self.disks.devices[device].visible().read(offset, &mut bytes);
        if offset >= CHECKPOINT_START_BLOCK * BLOCK_BYTES as u64 {
            cipher::open(&self.plan, offset, &mut bytes);
        }
        bytes
    }

    fn notice(&mut self, notice: Notice) -> Result<(), String> {
        self.digest.add(6);
        let harmed = self.disks.member_notes.as_ref().is_some_and(MemberNotes::is_harmed);
        let cache_errors = self.errors[CACHE] + u64::from(harmed);
        match notice {
            Notice::BlockDamaged { volume, lost, .. } => {
                if lost {
                    self.lost_at[usize::from(volume.0)] = Some(self.oracle.begin());
                    self.destage_check.note_lost(usize::from(volume.0));
                }
                self.counters.damaged_blocks += 1;
                self.books.note_damage();
                self.check_scrubbed()?;
                let fill_was_dropped = !lost && self.disks.devices.iter().any(SimDevice::has_ever_dropped);
                let written_over = !lost && self.disks.untold;
                let may_be = cache_errors > 0 || self.disks.damaged || fill_was_dropped || written_over;
                ensure!(may_be, "{notice:?}, but nothing was damaged");
                ensure!(!lost || self.plan.mirror.is_none(), "{notice:?}, but there is another member");
                ensure!(!lost || self.plan.outage.is_none(), "{notice:?}, but the device answers again");
            }
            Notice::DiscardsRefused => {
                ensure!(self.plan.discards.refuses, "{notice:?}, but the device has them");
            }
            Notice::OrderBroken { .. } => {
                ensure!(cache_errors > 0 || self.disks.damaged, "{notice:?}, but nothing was damaged");
            }
            Notice::OrderYielded { volume } => {
                let attached = self.engine.volume_settings(volume).is_some();
                ensure!(!attached, "{notice:?}, but it is attached");
            }
            Notice::CacheWriteFailed { .. } => ensure!(cache_errors > 0, "{notice:?}, but no write failed"),
            Notice::CacheFenced => {
                // Lost blocks may occupy all segments, including those damaged before a crash.
                ensure!(cache_errors > 0 || self.disks.damaged, "{notice:?}, but nothing failed");
                self.fenced = true;
                self.destage_check.without_cache();
            }
            Notice::MemberFailed { .. }
            | Notice::MemberOut { .. }
            | Notice::MirrorWhole
            | Notice::RebuildFailed => self.member_notice(notice)?,
            Notice::RunsWithoutCache => {
                let recorded = self.disks.record.is_some();
                ensure!(
                    self.fenced && recorded || fault::planted(PlantedBug::PassBeforeRecord),
                    "{notice:?} without a record"
                );
                self.counters.without_cache += 1;
            }
            Notice::RescueEnded { .. } => self.rescue_ended()?,
            Notice::OrderEnded { .. } => {
                ensure!(self.engine.runs_without_cache(), "{notice:?}, but the cache is there")
            }
            Notice::DestageFailed { volume, .. } => {
                let errors = self.errors[1 + usize::from(volume.0)] + cache_errors;
                ensure!(errors > 0, "{notice:?}, but no operation failed");
            }
            Notice::ScrubEnded { report, complete } => self.scrub_ended(report, complete)?,
            Notice::Checkpointed { generation } => {
                self.counters.checkpoints += 1;
                self.books.note_checkpoint();
                self.check_checkpoint(generation)?;
                self.leave_behind();
            }
            Notice::BackingChanged { volume, .. } => {
                let dropped = self.disks.devices[1 + usize::from(volume.0)].has_ever_dropped();
                let may_be = self.changed || self.oracle.relaxed || dropped;
                ensure!(may_be, "{notice:?}, but it did not change");
            }
            Notice::BackingUncertain { volume, .. } => {
                let said = self.disks.suspicions[usize::from(volume.0)];
                ensure!(
                    said == forebay_core::Suspicion::Uncertain,
                    "{notice:?}, but the owner says {said:?}"
                );
            }
            _ => self.life_notice(notice)?,
        }
        Ok(())
    }
}

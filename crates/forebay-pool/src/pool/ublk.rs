//! Volumes as block devices: the ublk devices of a pool.
//!
//! A thread makes each device, because most commands of the driver block, and some wait for the
//! pool's thread: the pool has to fetch requests before the device can be started, and to close the
//! device's file before it can be removed.
//!
//! A device in use outlives the pool. At an orderly stop, and for a successor, the pool leaves it
//! to the next process, which finds it again. Its users wait meanwhile, as after `kill -9`. The
//! same holds if the attach of the volume failed, until it succeeds. In both cases the pool removes
//! an unused device.

use super::lost_exports::ExportLoss;
use super::volumes::NotExported;
use super::{Pool, PoolEvent, Users};
use crate::direction::direction;
use crate::may_wait::MayWait;
use crate::recorder::Front;
use crate::token::FrontendOp;
use crate::ublk_device::{DeviceSpec, UblkDevice, mark, prepare};
use crate::ublk_server::{Backend, OnReactor, UblkOptions, UblkServer, reserve};
use forebay_admin::MessageId;
use forebay_config::mount_memory::MOUNTS_MAX;
use forebay_config::rules::{Client, Identity};
use forebay_core::{Nanos, Request, RequestError, RequestId, Treatment};
use forebay_export::request::ClientRequest;
use forebay_export::size::ByteSize;
use forebay_export::uri::{ExportUri, device_name_problem};
use forebay_format::VolumeId;
use forebay_io::ublk::{Channel, Claim};
use forebay_io::{BufId, IoFailure, UblkId};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Time limit for the pool to answer the thread that makes a device.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Devices, by number, that no other program can mount while this exists.
///
/// Dropping it may block.
pub type Claims = Vec<(u32, Claim)>;

/// A volume as a block device.
pub(super) struct Block {
    volume: VolumeId,
    uri: ExportUri,
    /// Identifies it among all devices of this pool, past ones too.
    number: u64,
    mark: u64,
    phase: Phase,
    /// A thread checks whether it is in use, and removes it if not.
    deciding: bool,
    /// The thread that makes it has ended.
    settled: bool,
    /// It was served, and has ended.
    has_ended: bool,
    size_bytes: u64,
    /// Memory reserved until it is served.
    spare: Option<BufId>,
    serving: Option<Serving>,
    device: Option<UblkDevice>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Making,
    Serving,
    /// It is being removed.
    Going,
    /// Left to another process, or to a later attach by this one.
    Left,
}

struct Serving {
    server: UblkServer,
    ublk: UblkId,
    client: Client,
}

/// How to end devices.
pub(crate) enum Fate {
    /// Remove them, even while in use.
    Remove(Claims),
    /// Leave those in use to the next process, and remove the others.
    RemoveUnused,
    /// Leave all to the next process.
    Leave,
}

/// The engine, as a device sees it.
struct DeviceBackend<'a> {
    front: Front<'a>,
    now: Nanos,
    client: &'a mut Client,
    at: Instant,
}

impl Backend for DeviceBackend<'_> {
    fn submit(&mut self, request: Request<'_>) {
        self.front.submit(self.now, request);
    }

    /// The kernel does not report the requesting process: rules for particular clients never match.
    fn treatment(&mut self, request: &ClientRequest) -> Treatment {
        let Some(direction) = direction(request.operation) else { return Treatment::Cache };
        self.client.decide(direction, request.offset_bytes, request.length_bytes, self.at).0.into()
    }
}

impl Pool {
    // --- making

    /// Begins to make a volume a block device; [`Pool::exported`] gets the result. If the device
    /// exists, because it was in use when the attach of the volume failed, returns its path at
    /// once.
    pub(super) fn begin_ublk(
        &mut self,
        volume: VolumeId,
        uri: &ExportUri,
    ) -> Result<Option<String>, NotExported> {
        let spec = self.ublk_spec(volume, uri)?;
        if let Some(name) = self.resume_ublk(volume, &spec) {
            return Ok(Some(name));
        }
        let there = self.mounts.iter().flatten().count() + self.mounting.len();
        if there + self.blocks.iter().flatten().count() >= usize::from(MOUNTS_MAX) {
            return Err(format!("a pool has at most {MOUNTS_MAX} block devices and FUSE files").into());
        }
        let spare = reserve(self.reactor.pool_mut()).ok_or_else(|| {
            format!(
                "there is no memory for another block device now: requests use all of buffer_memory ({}): \
                 try again under less load, or raise buffer_memory of the pool and start the daemon again",
                ByteSize(self.buffer_bytes as u64)
            )
        })?;
        self.blocks_made += 1;
        let (number, mark, size_bytes) = (self.blocks_made, spec.mark, spec.size_bytes);
        let (tasks, waker) = (self.myself.clone(), self.reactor.waker());
        let work = move |may_wait: &MayWait| {
            let made = prepare(may_wait, spec).and_then(|(prepared, channel)| {
                let (answer, told) = mpsc::sync_channel(1);
                let serve = move |pool: &mut Self| drop(answer.try_send(pool.serve_ublk(number, channel)));
                let _ = tasks.send(Box::new(serve)); // it may have ended
                waker.wake();
                let served = told.recv_timeout(TIMEOUT).unwrap_or(Err("the pool does not answer".into()));
                match served {
                    Ok(()) => prepared.start(may_wait),
                    Err(why) => {
                        prepared.undo(may_wait);
                        Err(why)
                    }
                }
            });
            let _ = tasks.send(Box::new(move |pool: &mut Self| pool.ublk_made(number, made)));
            waker.wake();
        };
        if let Err(error) = MayWait::spawn(format!("ublk-{}", self.name), work) {
            self.reactor.pool_mut().free(spare);
            return Err(NotExported::NoThread(error));
        }
        let block = Block {
            volume,
            uri: uri.clone(),
            number,
            mark,
            phase: Phase::Making,
            deciding: false,
            settled: false,
            has_ended: false,
            size_bytes,
            spare: Some(spare),
            serving: None,
            device: None,
        };
        match self.blocks.iter().position(Option::is_none) {
            Some(index) => self.blocks[index] = Some(block),
            None => self.blocks.push(Some(block)),
        }
        Ok(None)
    }

    /// Resumes a device that was left.
    fn resume_ublk(&mut self, volume: VolumeId, spec: &DeviceSpec) -> Option<String> {
        let rules = self.served(volume).map(|served| Arc::clone(&served.spec.rules))?;
        let is_it =
            |block: &&mut Block| block.phase == Phase::Left && block.mark == spec.mark && !block.deciding;
        let block = self.blocks.iter_mut().flatten().find(is_it)?;
        let (device, serving) = (block.device.as_ref()?, block.serving.as_mut()?);
        let path = device.path().display().to_string();
        serving.server.resume(volume, spec.size_bytes);
        serving.client = Client::new(rules, format!("ublk:{}", spec.name), Identity::unknown());
        (block.volume, block.phase) = (volume, Phase::Serving);
        self.resize_ublks(volume, spec.size_bytes);
        Some(path)
    }

    fn ublk_spec(&self, volume: VolumeId, uri: &ExportUri) -> Result<DeviceSpec, String> {
        let ExportUri::Ublk { name } = uri else { return Err("it is not a block device".into()) };
        if !self.reactor.can_serve_ublk() {
            return Err("block devices (ublk:) need io_uring, and this pool does its I/O with threads \
                        (psync): start the daemon with --io uring, which reports why io_uring is \
                        unavailable, or export the volume over NBD or FUSE"
                .into());
        }
        let served = self.served(volume).ok_or("the volume is gone")?;
        let name = name.clone().unwrap_or_else(|| served.spec.name.clone());
        if let Some((_, problem)) = device_name_problem(&name) {
            return Err(format!("{problem}, and \"{name}\" does not: give one (ublk:NAME)"));
        }
        let entry = self.engine.volume_table().into_iter().find(|entry| entry.id == volume);
        let entry = entry.ok_or("the volume is gone")?;
        let size_bytes = self.engine.volume_size_bytes(volume).unwrap_or(0);
        Ok(DeviceSpec { mark: mark(entry.uuid, &name), name, size_bytes, block_bytes: served.sector_bytes })
    }

    fn ublk_at(&self, number: u64) -> Option<usize> {
        self.blocks.iter().position(|block| block.as_ref().is_some_and(|block| block.number == number))
    }

    /// A thread has made a device, or found it: begins to fetch requests.
    fn serve_ublk(&mut self, number: u64, channel: Channel) -> Result<(), String> {
        let index = self.ublk_at(number).ok_or("the device is no longer wanted")?;
        let Some(Some(block)) = self.blocks.get_mut(index) else { return Err("it is gone".into()) };
        let volume = block.volume;
        let rules = self.volumes.get(usize::from(volume.0)).and_then(Option::as_ref);
        let rules = rules.map(|served| (Arc::clone(&served.spec.rules), &served.spec.name));
        let (Phase::Making, Some((rules, name))) = (block.phase, rules) else {
            return Err("the volume is gone".into());
        };
        let ExportUri::Ublk { name: given } = &block.uri else {
            return Err("it is not a block device".into());
        };
        let export = format!("ublk:{}", given.as_ref().unwrap_or(name));
        let Some(spare) = block.spare else { return Err("it is served already".into()) };
        let depth = channel.depth();
        let ublk = self.reactor.add_ublk(channel).map_err(|_| "the I/O engine is not io_uring")?;
        block.spare = None; // the server has it
        let options = UblkOptions { volume, slot: index as u16, size_bytes: block.size_bytes, depth };
        let client = Client::new(rules, export, Identity::unknown());
        let mut server = UblkServer::new(options, spare);
        server.begin(&mut OnReactor { reactor: &mut self.reactor, ublk });
        block.serving = Some(Serving { server, ublk, client });
        Ok(())
    }

    /// A thread has started a device, or has failed to.
    fn ublk_made(&mut self, number: u64, made: Result<UblkDevice, String>) {
        let Some(index) = self.ublk_at(number) else { return };
        let Some(Some(block)) = self.blocks.get_mut(index) else { return };
        let (volume, uri, phase) = (block.volume, block.uri.clone(), block.phase);
        block.settled = true;
        match made {
            Ok(device) => {
                let path = device.path().display().to_string();
                let recovered = device.recovered.then(|| {
                    format!("{path} (/dev/ublkb{}) continues where another process left it", device.number())
                });
                block.device = Some(device);
                if phase == Phase::Making {
                    block.phase = Phase::Serving;
                    recovered
                        .into_iter()
                        .for_each(|note| self.emit(PoolEvent::Note(MessageId::ExportNote, note)));
                    let size_bytes = self.engine.volume_size_bytes(volume).unwrap_or(0);
                    self.resize_ublks(volume, size_bytes);
                    return self.exported(volume, &uri, Ok::<_, NotExported>(path));
                }
                // The export was ended while the device was being made.
                let fate = if phase == Phase::Left { Fate::RemoveUnused } else { Fate::Remove(Vec::new()) };
                self.decide_ublk(index, fate);
            }
            Err(why) => {
                block.phase = Phase::Going;
                if phase == Phase::Making {
                    self.exported(volume, &uri, Err(why));
                }
            }
        }
    }

    // --- serving

    /// Lets every device take requests; returns true if the engine got a request.
    pub(super) fn turn_ublks(&mut self) -> bool {
        if self.blocks.is_empty() {
            return false;
        }
        let (now, at) = (self.io.now(), Instant::now());
        let mut started = false;
        for serving in self.blocks.iter_mut().flatten().filter_map(|block| block.serving.as_mut()) {
            let Serving { server, ublk, client } = serving;
            let front = Front { engine: &mut self.engine, recorder: &mut self.recorder };
            let mut backend = DeviceBackend { front, now, client, at };
            started |= server.turn(&mut backend, &mut OnReactor { reactor: &mut self.reactor, ublk: *ublk });
        }
        started
    }

    fn ublk_serving(&mut self, index: usize) -> Option<&mut Serving> {
        self.blocks.get_mut(index)?.as_mut()?.serving.as_mut()
    }

    /// An operation of a device has completed.
    pub(super) fn ublk_completed(&mut self, op: FrontendOp, result: Result<u32, IoFailure>) {
        if let Some(serving) = self.ublk_serving(usize::from(op.slot)) {
            serving.server.completed(op, result);
        }
    }

    pub(super) fn ublk_replied(
        &mut self,
        op: FrontendOp,
        request: RequestId,
        result: Result<(), RequestError>,
    ) {
        let Some(Some(block)) = self.blocks.get_mut(usize::from(op.slot)) else { return };
        let Some(Serving { server, ublk, .. }) = &mut block.serving else { return };
        server.replied(&mut OnReactor { reactor: &mut self.reactor, ublk: *ublk }, request, result);
    }

    /// The engine has no request of any device.
    pub(super) fn ublks_are_quiet(&self) -> bool {
        self.blocks.iter().flatten().filter_map(|block| block.serving.as_ref()).all(|s| s.server.is_quiet())
    }

    /// Returns the devices of a volume, for a thread that may query the kernel about them.
    pub fn block_devices(&self, name: &str) -> Vec<UblkDevice> {
        let Some(volume) = self.find(name) else { return Vec::new() };
        let of_volume = self.blocks.iter().flatten().filter(|block| block.volume == volume);
        of_volume
            .filter(|block| block.phase == Phase::Serving)
            .filter_map(|block| block.device.clone())
            .collect()
    }

    /// Returns a device of a volume whose size the kernel cannot change.
    pub(super) fn fixed_ublk(&self, volume: VolumeId) -> Option<&UblkDevice> {
        let of_volume = self.blocks.iter().flatten().filter(|block| block.volume == volume);
        of_volume.filter_map(|block| block.device.as_ref()).find(|device| !device.can_resize)
    }

    /// The volume was resized.
    pub(super) fn resize_ublks(&mut self, volume: VolumeId, size_bytes: u64) {
        let mut stale = Vec::new();
        for block in self.blocks.iter_mut().flatten().filter(|block| block.volume == volume) {
            if let Some(serving) = &mut block.serving {
                serving.server.set_size_bytes(size_bytes);
            }
            if block.device.is_some() && std::mem::replace(&mut block.size_bytes, size_bytes) != size_bytes {
                stale.extend(block.device.clone());
            }
        }
        for device in stale {
            self.ublk_chore(move |may_wait| device.set_size(may_wait, size_bytes));
        }
    }

    // --- ending

    /// Ends the devices of a volume (of all volumes if `None`).
    pub(super) fn end_ublks(&mut self, volume: Option<VolumeId>, mut fate: Fate) {
        for index in 0..self.blocks.len() {
            let concerned = |block: &Block| {
                let here = matches!(block.phase, Phase::Making | Phase::Serving);
                here && volume.is_none_or(|volume| volume == block.volume)
            };
            if !self.blocks[index].as_ref().is_some_and(concerned) {
                continue;
            }
            let this = match &mut fate {
                Fate::Remove(claims) => {
                    let device = self.blocks[index].as_ref().and_then(|block| block.device.as_ref());
                    let number = device.map(UblkDevice::number);
                    Fate::Remove(claims.extract_if(.., |(of, _)| Some(*of) == number).collect())
                }
                Fate::RemoveUnused => Fate::RemoveUnused,
                Fate::Leave => Fate::Leave,
            };
            self.decide_ublk(index, this);
        }
        if let Fate::Remove(claims) = fate {
            crate::time_limit::let_go(claims);
        }
    }

    fn decide_ublk(&mut self, index: usize, fate: Fate) {
        let Some(Some(block)) = self.blocks.get_mut(index) else { return };
        let leaves = !matches!(fate, Fate::Remove(_));
        block.phase = if leaves { Phase::Left } else { Phase::Going };
        if let Some(serving) = block.serving.as_mut().filter(|_| leaves) {
            serving.server.leave();
        }
        let number = block.number;
        let Some(device) = block.device.clone() else { return }; // decided again once it is made
        match fate {
            Fate::Leave => {}
            Fate::Remove(claims) => {
                let claim = claims.into_iter().next().map(|(_, claim)| claim);
                self.ublk_chore(move |may_wait| device.remove(may_wait, claim));
            }
            Fate::RemoveUnused => {
                block.deciding = true;
                let (tasks, waker) = (self.myself.clone(), self.reactor.waker());
                self.ublk_chore(move |may_wait| {
                    let unused = Users::of_devices(may_wait, std::slice::from_ref(&device));
                    let is_unused = unused.is_ok();
                    // Requests that it holds until now would block its removal.
                    let _ = tasks.send(Box::new(move |pool: &mut Self| pool.ublk_decided(number, is_unused)));
                    waker.wake();
                    let claims = unused.map_err(|users| {
                        let node = device.number();
                        format!("/dev/ublkb{node} stays, and its users wait until the volume is served again: {users}")
                    })?;
                    match claims.into_iter().next() {
                        Some((_, claim)) => device.remove(may_wait, Some(claim)),
                        None => Ok(()), // it is gone
                    }
                });
            }
        }
    }

    /// Reports whether a device that would be left is in use. An unused one is removed.
    fn ublk_decided(&mut self, number: u64, is_unused: bool) {
        let Some(index) = self.ublk_at(number) else { return };
        let Some(Some(block)) = self.blocks.get_mut(index) else { return };
        block.deciding = false;
        if !is_unused {
            return;
        }
        block.phase = Phase::Going;
        if let Some(Serving { server, ublk, .. }) = &mut block.serving {
            server.refuse(&mut OnReactor { reactor: &mut self.reactor, ublk: *ublk });
        }
    }

    /// Starts a thread that runs driver commands; reports errors as a note.
    fn ublk_chore(&mut self, work: impl FnOnce(&MayWait) -> Result<(), String> + Send + 'static) {
        let (tasks, waker) = (self.myself.clone(), self.reactor.waker());
        self.chore(move |may_wait| {
            if let Err(why) = work(may_wait) {
                let _ = tasks.send(Box::new(move |pool: &mut Self| {
                    pool.emit(PoolEvent::Note(MessageId::ExportNote, why))
                })); // it may have ended
                waker.wake();
            }
        });
    }

    /// Forgets devices that were removed, by the pool or by another program. Closes their files as
    /// soon as possible, because the thread that removes one waits for that.
    pub(super) fn forget_ublks(&mut self) {
        for index in 0..self.blocks.len() {
            let Some(block) = &mut self.blocks[index] else { continue };
            if let Some(Serving { server, ublk, .. }) = block.serving.take_if(|s| s.server.is_over()) {
                server.end(self.reactor.pool_mut());
                self.reactor.close_ublk(ublk);
                block.has_ended = true;
            }
            let is_over = |block: &mut Block| {
                block.settled && block.serving.is_none() && (block.has_ended || block.phase == Phase::Going)
            };
            let Some(block) = self.blocks[index].take_if(is_over) else { continue };
            block.spare.into_iter().for_each(|spare| self.reactor.pool_mut().free(spare));
            if let (Phase::Serving, Some(device)) = (block.phase, block.device) {
                self.export_lost(block.volume, &block.uri, ExportLoss::Gone);
                self.ublk_chore(move |may_wait| device.remove(may_wait, None)); // removes the rest of it
            }
        }
    }
}

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

use super::{ExportLoss, Frontend, FrontendCx, FrontendEvent, NotExported, Users};
use crate::may_wait::MayWait;
use crate::recorder::TracedEngine;
use crate::token::FrontendOp;
use crate::ublk_device::{DeviceSpec, UblkDevice, mark, prepare};
use crate::ublk_server::{OnReactor, UblkOptions, UblkServer, reserve};
use forebay_admin::size::ByteSize;
use forebay_config::mount_memory::MOUNTS_MAX;
use forebay_config::rules::{Client, Identity, RuleSet};
use forebay_core::{Nanos, RequestError, RequestId};
use forebay_export::uri::{ExportUri, device_name_problem};
use forebay_format::VolumeId;
use forebay_io::ublk::{Channel, Claim};
use forebay_io::{BufId, IoFailure, Reactor, UblkId};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Time limit for the pool to answer the thread that makes a device.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Devices, by number, that no other program can mount while this exists.
///
/// Dropping it may block.
pub type ExclusiveOpens = Vec<(u32, Claim)>;

/// The block devices of a pool.
#[derive(Default)]
pub(super) struct UblkFrontend {
    /// By slot.
    blocks: Vec<Option<Block>>,
    /// Block devices made so far.
    made: u64,
}

/// A volume as a block device.
struct Block {
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
}

/// How to end devices.
pub(crate) enum DeviceDisposition {
    /// Remove them, even while in use.
    Remove(ExclusiveOpens),
    /// Leave those in use to the next process, and remove the others.
    RemoveUnused,
    /// Leave all to the next process.
    Leave,
}

impl DeviceDisposition {
    /// Takes the part that concerns the device with this number.
    fn take(&mut self, number: Option<u32>) -> Self {
        match self {
            Self::Remove(claims) => {
                Self::Remove(claims.extract_if(.., |(of, _)| Some(*of) == number).collect())
            }
            Self::RemoveUnused => Self::RemoveUnused,
            Self::Leave => Self::Leave,
        }
    }

    /// Releases the claims.
    pub(crate) fn release(self) {
        if let Self::Remove(claims) = self {
            crate::time_limit::drop_in_background(claims);
        }
    }
}

impl UblkFrontend {
    /// Number of devices, and of those being made.
    pub(super) fn devices(&self) -> usize {
        self.blocks.iter().flatten().count()
    }

    // --- making

    /// Begins to make a volume a block device; an event has the result. If the device exists,
    /// because it was in use when the attach of the volume failed, returns its path at once. The
    /// pool has `mounts` FUSE files, which count for the same limit.
    pub(super) fn begin(
        &mut self,
        cx: &mut FrontendCx<'_>,
        volume: VolumeId,
        uri: &ExportUri,
        mounts: usize,
    ) -> Result<Option<String>, NotExported> {
        let spec = device_spec(cx, volume, uri)?;
        if let Some(name) = self.take_back(cx, volume, &spec) {
            return Ok(Some(name));
        }
        if mounts + self.devices() >= usize::from(MOUNTS_MAX) {
            return Err(format!("a pool has at most {MOUNTS_MAX} block devices and FUSE files").into());
        }
        let spare = reserve(cx.reactor.pool_mut()).ok_or_else(|| {
            format!(
                "there is no memory for another block device now: requests use all of buffer_memory ({}): \
                 try again under less load, or raise buffer_memory of the pool and start the daemon again",
                ByteSize(cx.buffer_bytes as u64)
            )
        })?;
        self.made += 1;
        let (number, mark, size_bytes) = (self.made, spec.mark, spec.size_bytes);
        let tasks = cx.tasks();
        let work = move |may_wait: &MayWait| {
            let made = prepare(may_wait, spec).and_then(|(prepared, channel)| {
                let (answer, told) = mpsc::sync_channel(1);
                tasks.send(move |frontends, cx| {
                    let _ = answer.try_send(frontends.ublk.serve(cx, number, channel));
                });
                let served = told.recv_timeout(TIMEOUT).unwrap_or(Err("the pool does not answer".into()));
                match served {
                    Ok(()) => prepared.start(may_wait),
                    Err(why) => {
                        prepared.undo(may_wait);
                        Err(why)
                    }
                }
            });
            tasks.send(move |frontends, cx| frontends.ublk.device_made(cx, number, made));
        };
        if let Err(error) = MayWait::spawn(format!("ublk-{}", cx.pool_name), work) {
            cx.reactor.pool_mut().free(spare);
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

    /// Serves a device again that was left.
    fn take_back(&mut self, cx: &mut FrontendCx<'_>, volume: VolumeId, spec: &DeviceSpec) -> Option<String> {
        let rules = cx.served(volume).map(|served| Arc::clone(served.rules))?;
        let is_it =
            |block: &&mut Block| block.phase == Phase::Left && block.mark == spec.mark && !block.deciding;
        let block = self.blocks.iter_mut().flatten().find(is_it)?;
        let (device, serving) = (block.device.as_ref()?, block.serving.as_mut()?);
        let path = device.path().display().to_string();
        serving.server.resume(volume, spec.size_bytes, client(rules, format!("ublk:{}", spec.name)));
        (block.volume, block.phase) = (volume, Phase::Serving);
        self.resize(cx, volume, spec.size_bytes);
        Some(path)
    }

    fn at(&self, number: u64) -> Option<usize> {
        self.blocks.iter().position(|block| block.as_ref().is_some_and(|block| block.number == number))
    }

    /// A thread has made a device, or found it: begins to fetch requests.
    fn serve(&mut self, cx: &mut FrontendCx<'_>, number: u64, channel: Channel) -> Result<(), String> {
        let index = self.at(number).ok_or("the device is no longer wanted")?;
        let Some(Some(block)) = self.blocks.get_mut(index) else { return Err("it is gone".into()) };
        let volume = block.volume;
        let rules = cx.served(volume).map(|served| (Arc::clone(served.rules), served.name));
        let (Phase::Making, Some((rules, name))) = (block.phase, rules) else {
            return Err("the volume is gone".into());
        };
        let ExportUri::Ublk { name: given } = &block.uri else {
            return Err("it is not a block device".into());
        };
        let export = format!("ublk:{}", given.as_deref().unwrap_or(name));
        let Some(spare) = block.spare else { return Err("it is served already".into()) };
        let depth = channel.depth();
        let ublk = cx.reactor.add_ublk(channel).map_err(|_| "the I/O engine is not io_uring")?;
        block.spare = None; // the server has it
        let options = UblkOptions { volume, slot: index as u16, size_bytes: block.size_bytes, depth };
        let mut server = UblkServer::new(options, spare, client(rules, export));
        server.begin(&mut OnReactor { reactor: cx.reactor, ublk });
        block.serving = Some(Serving { server, ublk });
        Ok(())
    }

    /// A thread has started a device, or has failed to.
    fn device_made(&mut self, cx: &mut FrontendCx<'_>, number: u64, made: Result<UblkDevice, String>) {
        let Some(index) = self.at(number) else { return };
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
                    cx.events.extend(recovered.map(FrontendEvent::Note));
                    let size_bytes = cx.size_bytes(volume);
                    self.resize(cx, volume, size_bytes);
                    return cx.exported(volume, uri, Ok::<_, NotExported>(path));
                }
                // The export was ended while the device was being made.
                let fate = match phase {
                    Phase::Left => DeviceDisposition::RemoveUnused,
                    _ => DeviceDisposition::Remove(Vec::new()),
                };
                self.end(cx, index, fate);
            }
            Err(why) => {
                block.phase = Phase::Going;
                if phase == Phase::Making {
                    cx.exported(volume, uri, Err(why));
                }
            }
        }
    }

    /// Returns the devices of a volume.
    pub(super) fn devices_of(&self, volume: VolumeId) -> Vec<UblkDevice> {
        let of_volume = self.blocks.iter().flatten().filter(|block| block.volume == volume);
        of_volume
            .filter(|block| block.phase == Phase::Serving)
            .filter_map(|block| block.device.clone())
            .collect()
    }

    /// Returns a device of a volume whose size the kernel cannot change.
    pub(super) fn fixed_device(&self, volume: VolumeId) -> Option<&UblkDevice> {
        let of_volume = self.blocks.iter().flatten().filter(|block| block.volume == volume);
        of_volume.filter_map(|block| block.device.as_ref()).find(|device| !device.can_resize)
    }

    // --- ending

    fn end(&mut self, cx: &mut FrontendCx<'_>, index: usize, fate: DeviceDisposition) {
        let Some(Some(block)) = self.blocks.get_mut(index) else { return };
        let leaves = !matches!(fate, DeviceDisposition::Remove(_));
        block.phase = if leaves { Phase::Left } else { Phase::Going };
        if let Some(serving) = block.serving.as_mut().filter(|_| leaves) {
            serving.server.leave();
        }
        let number = block.number;
        let Some(device) = block.device.clone() else { return }; // decided again once it is made
        match fate {
            DeviceDisposition::Leave => {}
            DeviceDisposition::Remove(claims) => {
                let claim = claims.into_iter().next().map(|(_, claim)| claim);
                cx.in_background(move |may_wait| device.remove(may_wait, claim));
            }
            DeviceDisposition::RemoveUnused => {
                block.deciding = true;
                let tasks = cx.tasks();
                cx.in_background(move |may_wait| {
                    let unused = Users::of_devices(may_wait, std::slice::from_ref(&device));
                    let is_unused = unused.is_ok();
                    // Requests that it holds until now would block its removal.
                    tasks.send(move |frontends, cx| frontends.ublk.decided(cx, number, is_unused));
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
    fn decided(&mut self, cx: &mut FrontendCx<'_>, number: u64, is_unused: bool) {
        let Some(index) = self.at(number) else { return };
        let Some(Some(block)) = self.blocks.get_mut(index) else { return };
        block.deciding = false;
        if !is_unused {
            return;
        }
        block.phase = Phase::Going;
        if let Some(Serving { server, ublk }) = &mut block.serving {
            server.refuse(&mut OnReactor { reactor: cx.reactor, ublk: *ublk });
        }
    }
}

/// The client of a device. The kernel does not report the requesting process: rules for particular
/// clients never match.
fn client(rules: Arc<RuleSet>, export: String) -> Client {
    Client::new(rules, export, Identity::unknown())
}

/// Describes the device of a volume.
fn device_spec(cx: &FrontendCx<'_>, volume: VolumeId, uri: &ExportUri) -> Result<DeviceSpec, String> {
    let ExportUri::Ublk { name } = uri else { return Err("it is not a block device".into()) };
    if !cx.reactor.can_serve_ublk() {
        return Err("block devices (ublk:) need io_uring, and this pool does its I/O with threads \
                    (psync): start the daemon with --io uring, which reports why io_uring is \
                    unavailable, or export the volume over NBD or FUSE"
            .into());
    }
    let served = cx.served(volume).ok_or("the volume is gone")?;
    let name = name.clone().unwrap_or_else(|| served.name.to_owned());
    if let Some((_, problem)) = device_name_problem(&name) {
        return Err(format!("{problem}, and \"{name}\" does not: give one (ublk:NAME)"));
    }
    let entry = cx.engine.volume_table().into_iter().find(|entry| entry.id == volume);
    let entry = entry.ok_or("the volume is gone")?;
    let (mark, size_bytes) = (mark(entry.uuid, &name), cx.size_bytes(volume));
    Ok(DeviceSpec { mark, name, size_bytes, block_bytes: served.sector_bytes })
}

impl Frontend for UblkFrontend {
    fn poll(&mut self, reactor: &mut Reactor, engine: &mut TracedEngine<'_>, now: Nanos) -> bool {
        if self.blocks.is_empty() {
            return false;
        }
        let at = Instant::now();
        let mut started = false;
        for serving in self.blocks.iter_mut().flatten().filter_map(|block| block.serving.as_mut()) {
            let Serving { server, ublk } = serving;
            let mut kernel = OnReactor { reactor: &mut *reactor, ublk: *ublk };
            started |= server.turn(engine, &mut kernel, now, at);
        }
        started
    }

    fn on_completion(&mut self, _: &mut Reactor, op: FrontendOp, result: Result<u32, IoFailure>) {
        let Some(Some(block)) = self.blocks.get_mut(usize::from(op.slot)) else { return };
        if let Some(serving) = &mut block.serving {
            serving.server.completed(op, result);
        }
    }

    fn on_reply(&mut self, reactor: &mut Reactor, request: RequestId, result: Result<(), RequestError>) {
        let slot = FrontendOp::of_request(request).slot;
        let Some(Some(block)) = self.blocks.get_mut(usize::from(slot)) else { return };
        let Some(Serving { server, ublk }) = &mut block.serving else { return };
        server.replied(&mut OnReactor { reactor, ublk: *ublk }, request, result);
    }

    fn send_replies(&mut self, _: &mut Reactor) {
        // Each reply is sent at once.
    }

    fn timers(&mut self, _: &mut Reactor) -> Option<Duration> {
        None
    }

    fn tend(&mut self, _: &mut FrontendCx<'_>) -> Option<Duration> {
        None
    }

    /// Forgets devices that were removed, by the pool or by another program. Closes their files as
    /// soon as possible, because the thread that removes one waits for that.
    fn reap(&mut self, cx: &mut FrontendCx<'_>) {
        for slot in &mut self.blocks {
            let Some(block) = slot else { continue };
            if let Some(Serving { server, ublk }) = block.serving.take_if(|s| s.server.is_over()) {
                server.end(cx.reactor.pool_mut());
                cx.reactor.close_ublk(ublk);
                block.has_ended = true;
            }
            let is_over = |block: &mut Block| {
                block.settled && block.serving.is_none() && (block.has_ended || block.phase == Phase::Going)
            };
            let Some(block) = slot.take_if(is_over) else { continue };
            block.spare.into_iter().for_each(|spare| cx.reactor.pool_mut().free(spare));
            if let (Phase::Serving, Some(device)) = (block.phase, block.device) {
                cx.events.push(FrontendEvent::Lost(block.volume, block.uri, ExportLoss::Gone));
                cx.in_background(move |may_wait| device.remove(may_wait, None)); // removes the rest of it
            }
        }
    }

    fn resize(&mut self, cx: &mut FrontendCx<'_>, volume: VolumeId, size_bytes: u64) {
        for block in self.blocks.iter_mut().flatten().filter(|block| block.volume == volume) {
            if let Some(serving) = &mut block.serving {
                serving.server.set_size_bytes(size_bytes);
            }
            let Some(device) = &block.device else { continue };
            if std::mem::replace(&mut block.size_bytes, size_bytes) != size_bytes {
                let device = device.clone();
                cx.in_background(move |may_wait| device.set_size(may_wait, size_bytes));
            }
        }
    }

    fn close(&mut self, cx: &mut FrontendCx<'_>, volume: Option<VolumeId>, devices: &mut DeviceDisposition) {
        for index in 0..self.blocks.len() {
            let Some(block) = &self.blocks[index] else { continue };
            let is_here = matches!(block.phase, Phase::Making | Phase::Serving);
            if is_here && volume.is_none_or(|volume| volume == block.volume) {
                let fate = devices.take(block.device.as_ref().map(UblkDevice::number));
                self.end(cx, index, fate);
            }
        }
    }

    /// Returns true if the engine has no request of any device.
    fn is_idle(&self) -> bool {
        self.blocks.iter().flatten().filter_map(|block| block.serving.as_ref()).all(|s| s.server.is_quiet())
    }

    fn add_users(&self, _: &Reactor, _: VolumeId, _: &mut Users) {
        // Only threads that may wait can query the kernel ([`Users::of_devices`]).
    }

    fn user_count(&self, _: VolumeId) -> u64 {
        0
    }
}

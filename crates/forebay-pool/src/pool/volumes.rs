//! Volumes of a pool: attaching, serving, changing and detaching them.
//!
//! Attaching: device and engine first, exports when the engine's notice has come. Detaching the
//! other way round: the exports go first, so that nobody asks any more, then the engine, then the
//! device. In between the volume is in the table with its state, so that nothing else can take its
//! place.

use super::handle::PromiseSender;
use super::lost_exports::LostExports;
use super::saving::Saving;
use super::store_state::Outcomes;
use super::ublk::{Claims, Fate};
use super::unplugged::Return;
use super::{Lost, Pool, PoolEvent, Promise};
use crate::message::of_lifecycle;
use crate::meter::{History, Meter};
use crate::open::Backing;
use crate::server::{Offer, Socket};
use crate::ublk_device::UblkDevice;
use crate::witness::Prepared;
use forebay_admin::events::EventKind;
use forebay_admin::{AdminError, ErrorKind, MessageId, VolumeState};
use forebay_config::rules::RuleSet;
use forebay_core::{
    Attachment, DestageReport, DetachHow, Drain, LifecycleError, OnBackingChange, PoolSettings,
    VolumeSettings,
};
use forebay_export::directory::ExportInfo;
use forebay_export::uri::{BackingUri, ExportUri};
use forebay_format::VolumeId;
use forebay_format::checkpoint::{BackingRecord, VolumeEntry};
use forebay_io::{Device, DeviceId, IoFailure};
use std::io;
use std::sync::Arc;
use thiserror::Error;

/// What a volume is to be.
#[derive(Clone, Debug)]
pub struct VolumeSpec {
    /// Name.
    pub name: String,
    /// Backing store.
    pub backing: BackingUri,
    /// Where clients are to find it.
    pub exports: Vec<ExportUri>,
    /// Bytes to serve, if not all of the backing store.
    pub size_bytes: Option<u64>,
    /// Connections at once.
    pub connections_max: u32,
    /// Settings.
    pub settings: VolumeSettings,
    /// What to do if the backing store was changed while the cache was away.
    pub on_backing_change: OnBackingChange,
    /// Rules.
    pub rules: Arc<RuleSet>,
}

pub(super) type Done = PromiseSender<Result<(), AdminError>>;

/// A volume in the table of its pool.
pub(crate) struct Served {
    pub(crate) spec: VolumeSpec,
    pub(crate) state: VolumeState,
    pub(crate) device: DeviceId,
    /// Sector of its backing store, in bytes.
    pub(super) sector_bytes: u32,
    /// What identified its backing store when it was attached.
    pub(super) record: BackingRecord,
    /// Its backing store was unplugged, and how far it is on its way back.
    pub(super) returns: Return,
    /// What is exported, and how clients find each.
    pub(super) exported: Vec<(ExportUri, String)>,
    pub(crate) meter: Meter,
    pub(crate) history: History,
    /// Destage failed when so many blocks had been written back, and none has been since.
    pub(crate) destage_failing_at: Option<u64>,
    /// Failed attempts at writing back.
    pub(crate) destage_failures: u64,
    /// How the backing store refused last what was to change it.
    pub(super) refused: Option<IoFailure>,
    /// How its last operations have ended.
    pub(super) outcomes: Outcomes,
    /// What is known of the backing store, until it may be written to.
    prepared: Option<Prepared>,
    /// Its backing file is being written to another path before it is closed.
    pub(super) saving: Option<Arc<Saving>>,
    /// Why it was not.
    pub(super) not_saved: Option<AdminError>,
    /// Who waits for the end of what is being done.
    waiting: Option<Done>,
    /// It could not be attached, for this reason, and is let go again.
    attach_error: Option<AdminError>,
    /// Exports that are being made.
    pub(super) exporting: Option<Exporting>,
    /// Exports that have gone without the daemon.
    pub(super) lost_exports: LostExports,
}

impl Served {
    /// Its backing store is another device now: what the last one answered says nothing of it.
    pub(super) fn note_new_device(&mut self) {
        (self.refused, self.outcomes) = (None, Outcomes::default());
    }
}

/// How destage of a volume is.
#[derive(Debug)]
pub struct Destaging {
    /// What the engine says of it.
    pub report: DestageReport,
    /// How often it has failed.
    pub failures: u64,
    /// Why the backing store may not be written, if the last attempt has failed for that.
    pub not_permitted: Option<String>,
    /// The file of the backing store has no name any more: what is written to it is gone when it is
    /// closed.
    pub nameless: Option<AdminError>,
}

/// Why an export is not made.
#[derive(Debug, Error)]
pub(super) enum NotExported {
    /// There is no thread that could make it.
    #[error("cannot start a thread: {0}")]
    NoThread(io::Error),
    /// Everything else.
    #[error("{0}")]
    Refused(String),
}

impl From<String> for NotExported {
    fn from(what: String) -> Self {
        Self::Refused(what)
    }
}

impl From<&str> for NotExported {
    fn from(what: &str) -> Self {
        Self::Refused(what.into())
    }
}

impl NotExported {
    /// For who has asked. A conflict: nobody tries it again by itself.
    fn error(&self, volume: &str) -> AdminError {
        let what = format!("cannot export {volume}: {self}");
        match self {
            Self::NoThread(error) => AdminError { what, ..AdminError::no_thread(error) },
            Self::Refused(_) => AdminError::new(MessageId::ExportFailed, what, ""),
        }
    }
}

/// Exports of a volume that are being made.
pub(super) struct Exporting {
    /// So many have not come to their end.
    left: usize,
    /// The first thing that went wrong.
    problem: Option<NotExported>,
    then: Then,
}

/// What follows once exports are made.
enum Then {
    /// The volume is attached.
    Attached,
    /// It is served as before, because of this.
    Back(LifecycleError),
    /// It has more exports than before.
    More(Done),
}

/// What the operator is told when the engine refuses a change.
pub(super) fn refused(doing: &str, name: &str, error: &LifecycleError) -> AdminError {
    let kind = match error {
        LifecycleError::OutOfRange | LifecycleError::Size { .. } | LifecycleError::PoolRange { .. } => {
            ErrorKind::Invalid
        }
        LifecycleError::NotServing => ErrorKind::Unavailable,
        LifecycleError::NotAttached => ErrorKind::NotFound,
        LifecycleError::Fenced | LifecycleError::BackingUnreadable | LifecycleError::BackingFlush => {
            ErrorKind::Failed
        }
        _ => ErrorKind::Conflict,
    };
    let hint = match error {
        LifecycleError::BackingChanged { .. } => return changed(name, error),
        LifecycleError::BackingShrunk { .. } => {
            "give the backing store that belongs to this volume, at its full size"
        }
        LifecycleError::BackingUnreadable => "check the backing device; nothing was changed",
        LifecycleError::BackingFlush => {
            "check the backing device and what was written last; nothing was changed, and the same command tries it again"
        }
        _ => "",
    };
    AdminError::new(of_lifecycle(error), format!("cannot {doing} {name}: {error}"), hint).of_kind(kind)
}

/// A backing store was changed under dirty data: the commands must work as they stand.
fn changed(name: &str, error: &LifecycleError) -> AdminError {
    AdminError::new(
        MessageId::Event(EventKind::BackingChanged),
        format!("cannot attach {name}: {error}"),
        format!(
            "if it is the wrong one (devices may have other names now), give the one that belongs to this cache: forebay volume attach {name} \
             --backing URI; if it is the right one and what changed on it may be lost: forebay set {name} on_backing_change=keep-dirty, then \
             forebay volume attach {name}; if the data in the cache may be lost: the same with discard-dirty (`forebay run` takes --set \
             on_backing_change=...)"
        ),
    )
}

fn busy(name: &str, what: &str) -> AdminError {
    AdminError::new(MessageId::VolumeBusy, format!("{name} {what}"), "wait for its job, or cancel it")
}

fn cannot_resize(name: &str, device: &UblkDevice) -> AdminError {
    AdminError::new(
        MessageId::VolumeResizeUnsupported,
        format!(
            "cannot resize {name}: it is the block device {}, and this kernel cannot change the size of one (Linux 6.16 can)",
            device.path().display()
        ),
        "detach it, keeping what is cached, and attach it again with the other size",
    )
}

/// Bytes of the backing store that are to be served.
fn served_size(spec: &VolumeSpec, backing: &Backing) -> Result<u64, AdminError> {
    let Some(wanted) = spec.size_bytes else { return Ok(backing.size_bytes) };
    if wanted <= backing.size_bytes && wanted.is_multiple_of(u64::from(backing.sector_bytes)) && wanted > 0 {
        return Ok(wanted);
    }
    Err(AdminError::new(
        MessageId::VolumeSize,
        format!(
            "{} cannot have {wanted} bytes: its backing store has {}, in sectors of {}",
            spec.name, backing.size_bytes, backing.sector_bytes
        ),
        "leave the size out to serve all of it",
    ))
}

impl Pool {
    pub(super) fn served(&self, volume: VolumeId) -> Option<&Served> {
        self.volumes.get(usize::from(volume.0))?.as_ref()
    }

    pub(super) fn served_mut(&mut self, volume: VolumeId) -> Option<&mut Served> {
        self.volumes.get_mut(usize::from(volume.0))?.as_mut()
    }

    /// The number of a volume by its name.
    pub fn find(&self, name: &str) -> Option<VolumeId> {
        let named = |served: &Option<Served>| served.as_ref().is_some_and(|served| served.spec.name == name);
        self.volumes.iter().position(named).map(|index| VolumeId(index as u16))
    }

    /// Names of all volumes that are attached, or are coming or going.
    pub fn names(&self) -> Vec<String> {
        self.volumes.iter().flatten().map(|served| served.spec.name.clone()).collect()
    }

    fn known(&self, name: &str) -> Result<VolumeId, AdminError> {
        self.find(name).ok_or_else(|| {
            let names: Vec<&str> =
                self.volumes.iter().flatten().map(|served| served.spec.name.as_str()).collect();
            AdminError::not_found(MessageId::VolumeUnknown, "volume", name, &names)
        })
    }

    /// A volume that is served, and with which nothing else is being done.
    fn at_rest(&self, name: &str) -> Result<VolumeId, AdminError> {
        let id = self.known(name)?;
        match self.served(id).map(|served| served.state) {
            Some(VolumeState::Serving) => Ok(id),
            Some(VolumeState::Attaching) => Err(busy(name, "is being attached")),
            _ => Err(busy(name, "is being detached")),
        }
    }

    // --- attach

    /// Begins to attach a volume; the promise is kept when clients can connect.
    pub fn attach(
        &mut self,
        spec: VolumeSpec,
        backing: Backing,
        prepared: Prepared,
    ) -> Promise<Result<(), AdminError>> {
        let (done, promise) = Promise::pair();
        if let Err(error) = self.begin_attach(spec, backing, prepared, &done) {
            let _ = done.try_send(Err(error));
        }
        promise
    }

    /// What the cache knows of a volume, attached or not.
    pub fn entry_of(&self, name: &str) -> Option<VolumeEntry> {
        self.engine.volume_table().into_iter().find(|entry| entry.name == name)
    }

    /// Identity of a volume that the cache knows, attached or not.
    pub fn uuid_of(&self, name: &str) -> Option<[u8; 16]> {
        self.entry_of(name).map(|entry| entry.uuid)
    }

    fn begin_attach(
        &mut self,
        spec: VolumeSpec,
        backing: Backing,
        prepared: Prepared,
        done: &Done,
    ) -> Result<(), AdminError> {
        let name = spec.name.clone();
        if self.find(&name).is_some() {
            return Err(AdminError::new(
                MessageId::VolumeAttachedAlready,
                format!("{name} is attached already"),
                "",
            ));
        }
        let size_bytes = served_size(&spec, &backing)?;
        let entry = self.entry(&spec, &backing, size_bytes, prepared.uuid)?;
        let id = entry.id;
        // Beyond its end when the cache failed nobody knows what the volume had: a shrink may have
        // been under way.
        let without_cache = self.engine.runs_without_cache();
        let size_bytes = match without_cache {
            true => size_bytes.min(entry.size_bytes),
            false => self.size_with_cache(&entry, size_bytes, &backing),
        };
        let attachment = Attachment {
            volume: id,
            settings: spec.settings,
            size_bytes,
            backing: backing.record.clone(),
            backing_sector_bytes: backing.sector_bytes,
            on_change: spec.on_backing_change,
            suspicion: prepared.suspicion,
        };
        let record = backing.record;
        let mut device = backing.device;
        device.set_end(size_bytes);
        let device = self.reactor.add_device(device);
        self.io.set_backing(id, Some(device));
        let now = self.io.now();
        if let Err(error) = self.engine.attach_volume(now, entry, attachment) {
            self.io.set_backing(id, None);
            crate::time_limit::let_go(self.reactor.remove_device(device));
            return Err(refused("attach", &name, &error));
        }
        for note in backing.notes {
            self.emit(PoolEvent::Note(MessageId::PoolNote, note));
        }
        let served = Served {
            spec,
            state: VolumeState::Attaching,
            device,
            sector_bytes: backing.sector_bytes,
            record,
            returns: Return::default(),
            exported: Vec::new(),
            meter: Meter::new(now),
            history: History::new(now),
            destage_failing_at: None,
            destage_failures: 0,
            refused: None,
            outcomes: Outcomes::default(),
            prepared: Some(prepared),
            saving: None,
            not_saved: None,
            waiting: Some(done.clone()),
            attach_error: None,
            exporting: None,
            lost_exports: LostExports::default(),
        };
        let index = usize::from(id.0);
        if index >= self.volumes.len() {
            self.volumes.resize_with(index + 1, || None);
        }
        self.volumes[index] = Some(served);
        Ok(())
    }

    /// An attach makes no volume smaller: what lies beyond the configured end may be dirty. It has
    /// the size that the cache has recorded, until it is resized.
    fn size_with_cache(&mut self, entry: &VolumeEntry, configured_bytes: u64, backing: &Backing) -> u64 {
        let recorded_bytes = entry.size_bytes;
        if configured_bytes >= recorded_bytes || recorded_bytes > backing.size_bytes {
            return configured_bytes;
        }
        let name = &entry.name;
        let note = format!(
            "{name} has {recorded_bytes} bytes, not {configured_bytes} as configured: an attach makes no volume smaller; to do that: forebay \
             volume resize {name} {configured_bytes}"
        );
        self.emit(PoolEvent::Note(MessageId::VolumeSize, note));
        recorded_bytes
    }

    /// The entry of a volume in the cache's table: the one that is there, or a new one.
    fn entry(
        &self,
        spec: &VolumeSpec,
        backing: &Backing,
        size_bytes: u64,
        uuid: [u8; 16],
    ) -> Result<VolumeEntry, AdminError> {
        let table = self.engine.volume_table();
        if let Some(entry) = table.iter().find(|entry| entry.name == spec.name) {
            return Ok(entry.clone());
        }
        let id = self.engine.free_volume_id().ok_or_else(|| {
            AdminError::new(
                MessageId::PoolFull,
                format!("pool {} has as many volumes as it can have", self.name),
                "detach one, or make another pool",
            )
        })?;
        Ok(VolumeEntry {
            id,
            mode: spec.settings.mode,
            name: spec.name.clone(),
            size_bytes,
            uuid,
            backing: BackingRecord { stamp_ns: None, ..backing.record.clone() },
            flush_epoch: 0,
        })
    }

    /// The engine takes requests for the volume.
    pub(super) fn attached(&mut self, id: VolumeId) {
        let size_bytes = self.engine.volume_size_bytes(id).unwrap_or(0);
        let Some(served) = self.served_mut(id) else { return };
        let prepared = served.prepared.take();
        let watch = prepared.map(|prepared| prepared.begin(&served.spec.name));
        served.spec.rules.set_volume_bytes(size_bytes);
        let (uris, rules) = (served.spec.exports.clone(), Arc::clone(&served.spec.rules));
        self.io.set_watch(id, watch);
        self.server.add_volume(id, rules);
        self.export_all(id, &uris, Then::Attached);
    }

    /// Begins to make exports; what follows is done when the last of them is made, or could not be
    /// made.
    fn export_all(&mut self, id: VolumeId, uris: &[ExportUri], then: Then) {
        let Some(served) = self.served_mut(id) else { return };
        // Those of an attempt in which another one could not be made are there.
        let is_made = |uri: &ExportUri| served.exported.iter().any(|(exported, _)| exported == uri);
        let missing: Vec<&ExportUri> = uris.iter().filter(|uri| !is_made(uri)).collect();
        // One more than there are, so that the end comes after the loop.
        served.exporting = Some(Exporting { left: missing.len() + 1, problem: None, then });
        for uri in missing {
            match self.export(id, uri) {
                Ok(Some(text)) => self.exported(id, uri, Ok::<_, NotExported>(text)),
                Ok(None) => {} // It takes a while, and is told then.
                Err(what) => self.exported(id, uri, Err(what)),
            }
        }
        self.one_exported(id);
    }

    /// An export is made, as clients find it, or could not be made.
    pub(super) fn exported(
        &mut self,
        id: VolumeId,
        uri: &ExportUri,
        result: Result<String, impl Into<NotExported>>,
    ) {
        let Some(served) = self.served_mut(id) else { return };
        let Some(exporting) = &mut served.exporting else { return };
        let is_new = !matches!(exporting.then, Then::Back(_));
        match result {
            Err(what) => drop(exporting.problem.get_or_insert(what.into())),
            Ok(export) => {
                if matches!(exporting.then, Then::More(_)) {
                    served.spec.exports.push(uri.clone());
                }
                served.exported.push((uri.clone(), export.clone()));
                let volume = served.spec.name.clone();
                let is_back = served.lost_exports.forget(|lost| lost == uri);
                if is_new {
                    self.emit(PoolEvent::Ready { volume: volume.clone(), export });
                }
                if is_back {
                    self.tell_lost_exports(id);
                }
            }
        }
        self.one_exported(id);
    }

    fn one_exported(&mut self, id: VolumeId) {
        let Some(served) = self.served_mut(id) else { return };
        let Some(exporting) = &mut served.exporting else { return };
        exporting.left -= 1;
        if exporting.left > 0 {
            return;
        }
        let Some(Exporting { problem, then, .. }) = served.exporting.take() else { return };
        let name = served.spec.name.clone();
        let failed = |problem: NotExported| problem.error(&name);
        match then {
            Then::Attached => self.attached_with(id, problem.map_or(Ok(()), |what| Err(failed(what)))),
            Then::Back(error) => {
                served.state = VolumeState::Serving;
                let why = served.not_saved.take().or_else(|| served.attach_error.take());
                let why = why.unwrap_or_else(|| refused("detach", &name, &error));
                if let Some(waiting) = served.waiting.take() {
                    let _ = waiting.try_send(Err(why));
                }
                if let Some(what) = problem {
                    self.emit(PoolEvent::Note(
                        MessageId::ExportFailed,
                        format!("cannot export {name} again: {what}"),
                    ));
                }
            }
            Then::More(done) => {
                let _ = done.try_send(problem.map_or(Ok(()), |what| Err(failed(what))));
            }
        }
    }

    /// All exports of a new volume are made, or one of them could not be.
    fn attached_with(&mut self, id: VolumeId, result: Result<(), AdminError>) {
        let Some(served) = self.served_mut(id) else { return };
        let waiting = served.waiting.take();
        served.state = VolumeState::Serving;
        let (waiting, failed) = match (result, waiting) {
            // Who has asked for it may have been told meanwhile that it failed, as it took too
            // long: then it has.
            (Ok(()), waiting) => match waiting.map(|waiting| waiting.try_send(Ok(()))) {
                Some(Err(_)) => (None, None),
                _ => return,
            },
            (Err(error), waiting) => (waiting, Some(error)),
        };
        served.attach_error.clone_from(&failed);
        // Nothing was written to it yet: what was cached before stays for the next attempt. So does
        // a block device that is used since before this start. Who has asked hears of it when it is
        // gone again.
        if let Err(error) = self.begin_detach(id, DetachHow::Keep, waiting.clone(), Fate::RemoveUnused) {
            let name = self.name_of(id);
            let what = format!("the exports that {name} has stay: {}", error.what);
            self.emit(PoolEvent::Note(error.id, what));
            if let (Some(waiting), Some(failed)) = (waiting, failed) {
                let _ = waiting.try_send(Err(failed));
            }
        }
    }

    /// Tells a volume from all others, also after its name was given to another one.
    fn mark(&self, id: VolumeId) -> Option<String> {
        let entry = self.engine.volume_table().into_iter().find(|entry| entry.id == id)?;
        let spec = &self.served(id)?.spec;
        Some(format!("{:032x} {} {}", u128::from_be_bytes(entry.uuid), spec.name, spec.backing))
    }

    /// Makes an export; gives how clients find it, or `None` if that is told later.
    fn export(&mut self, id: VolumeId, uri: &ExportUri) -> Result<Option<String>, NotExported> {
        match uri {
            ExportUri::Nbd { endpoint, permissions, .. } => {
                match self.server.must_listen(endpoint, permissions) {
                    Some(wanted) => self.begin_listen(id, uri, wanted).map(|()| None),
                    None => Ok(Some(self.offer(id, uri, &mut None)?)),
                }
            }
            ExportUri::Fuse { path } => self.begin_mount(id, path).map(|()| None),
            ExportUri::Ublk { .. } => self.begin_ublk(id, uri),
            ExportUri::VhostUser { .. } => self.begin_guest(id, uri).map(|()| None),
        }
    }

    /// Offers a volume to NBD clients, at an endpoint that is listened on or with a socket that was
    /// made for it, which is taken then.
    pub(super) fn offer(
        &mut self,
        id: VolumeId,
        uri: &ExportUri,
        socket: &mut Option<Socket>,
    ) -> Result<String, String> {
        let ExportUri::Nbd { endpoint, name, guards, permissions } = uri else {
            return Err("it is no NBD export".into());
        };
        let info = ExportInfo::new(name, self.engine.volume_size_bytes(id).unwrap_or(0));
        let tls = guards.tls.as_deref().map(|name| self.guards.tls(name)).transpose()?;
        let access = guards.access.as_deref().map(|name| self.guards.access(name)).transpose()?;
        let connections_max = self.served(id).map_or(u32::MAX, |served| served.spec.connections_max);
        let mark = self.mark(id).ok_or("the volume is gone")?;
        let offer = Offer { endpoint, permissions, volume: id, info, mark, connections_max, tls, access };
        self.server.export(&mut self.reactor, offer, socket)
    }

    /// Why it cannot be told whether the backing store of a volume that is being attached was
    /// changed.
    pub(super) fn doubt_about(&self, id: VolumeId) -> String {
        let prepared = self.served(id).and_then(|served| served.prepared.as_ref());
        prepared.map_or_else(String::new, |prepared| prepared.why.clone())
    }

    /// The engine refuses the volume.
    pub(super) fn attach_failed(&mut self, id: VolumeId, error: &LifecycleError) {
        if let Some(mut served) = self.forget(id)
            && let Some(waiting) = served.waiting.take()
        {
            let mut refusal = refused("attach", &served.spec.name, error);
            if let (LifecycleError::BackingChanged { .. }, Some(prepared)) = (error, &served.prepared)
                && !prepared.why.is_empty()
            {
                refusal.what += &format!(" ({})", prepared.why);
            }
            let _ = waiting.try_send(Err(refusal));
        }
    }

    /// Takes a volume out of the table and closes its backing store.
    fn forget(&mut self, id: VolumeId) -> Option<Served> {
        let mut served = self.volumes.get_mut(usize::from(id.0))?.take()?;
        crate::time_limit::let_go(std::mem::take(&mut served.returns));
        self.io.set_backing(id, None);
        self.recorder.volume_gone(id);
        self.forget_device(served.device);
        let known = self.engine.volume_table().iter().any(|entry| entry.id == id);
        match self.io.set_watch(id, None) {
            Some(watch) if !known || served.saving.is_some() => watch.forget(),
            _ => {} // it comes back
        }
        match self.reactor.remove_device(served.device) {
            Some(device) => crate::time_limit::let_go(device), // Who serves it may not answer.
            None => {
                self.emit(PoolEvent::Note(
                    MessageId::BackingNotAnswering,
                    format!("the backing store of {} is still busy", served.spec.name),
                ));
            }
        }
        Some(served)
    }

    // --- detach

    /// Everything that is written to the volume from now on reaches its backing store before it is
    /// acknowledged, and what is dirty is written back as fast as that goes: for the job of a
    /// detach. Ended by [`Pool::end_draining`].
    pub fn begin_draining(&mut self, name: &str) -> Result<(), AdminError> {
        let id = self.at_rest(name)?;
        let now = self.io.now();
        self.engine.begin_detach(now, id).map_err(|error| refused("drain", name, &error))?;
        if let Some(served) = self.served_mut(id) {
            served.state = VolumeState::Draining;
        }
        Ok(())
    }

    /// A detach was cancelled before it was done.
    pub fn end_draining(&mut self, name: &str) {
        let Some(id) = self.find(name).filter(|id| self.cancel_saving(*id)) else { return };
        let now = self.io.now();
        if let Err(error) = self.engine.cancel_detach(now, id) {
            self.emit(PoolEvent::Note(
                MessageId::ExportFailed,
                format!("cannot go back to serving {name}: {error}"),
            ));
            return;
        }
        if let Some(served) = self.served_mut(id)
            && served.state == VolumeState::Draining
        {
            served.state = VolumeState::Serving;
        }
    }

    /// Detaches a volume; the promise is kept when the cache has forgotten it (or, if it is kept,
    /// when the cache has noted how it was left). One that is in use is refused unless `force`:
    /// looked at here, where nobody can come in between. Of block devices that cannot be seen here:
    /// `claims` keep others from those that nobody uses.
    pub fn detach(
        &mut self,
        name: &str,
        how: DetachHow,
        force: bool,
        claims: Claims,
    ) -> Promise<Result<(), AdminError>> {
        let (done, promise) = Promise::pair();
        let detachable = self.detachable(name, force).and_then(|id| match how {
            DetachHow::Discard => Ok(id), // it is given up with its file
            DetachHow::Drained | DetachHow::Keep => self.check_store_has_name(name, "detach").map(|()| id),
        });
        let begun = match detachable {
            Ok(id) => self.begin_detach(id, how, Some(done.clone()), Fate::Remove(claims)),
            Err(error) => {
                crate::time_limit::let_go(claims);
                Err(error)
            }
        };
        if let Err(error) = begun {
            let _ = done.try_send(Err(error));
        }
        promise
    }

    /// A volume that can be detached now, by `force` also if it is in use.
    pub(super) fn detachable(&self, name: &str, force: bool) -> Result<VolumeId, AdminError> {
        let (id, users) = (self.known(name)?, self.users(name));
        match self.served(id).map(|served| served.state) {
            Some(VolumeState::Serving | VolumeState::Draining) if !(force || users.is_empty()) => {
                Err(users.refuse("detach", name))
            }
            Some(VolumeState::Serving | VolumeState::Draining) => Ok(id),
            _ => Err(busy(name, "is being attached or detached already")),
        }
    }

    pub(super) fn begin_detach(
        &mut self,
        id: VolumeId,
        how: DetachHow,
        done: Option<Done>,
        devices: Fate,
    ) -> Result<(), AdminError> {
        let name = self.served(id).map(|served| served.spec.name.clone()).unwrap_or_default();
        let now = self.io.now();
        if let Err(error) = self.engine.detach_volume(now, id, how) {
            if let Fate::Remove(claims) = devices {
                crate::time_limit::let_go(claims);
            }
            return Err(refused("detach", &name, &error));
        }
        self.unmount(Some(id));
        self.end_ublks(Some(id), devices);
        self.close_guests(Some(id));
        self.server.withdraw(&mut self.reactor, id);
        self.clear_sockets();
        if let Some(served) = self.served_mut(id) {
            served.state = VolumeState::Detaching;
            served.waiting = done;
            served.exported.clear();
            let had_lost = served.lost_exports.forget(|_| true);
            if let Some(Exporting { then: Then::More(done), .. }) = served.exporting.take() {
                let _ = done.try_send(Err(busy(&name, "is being detached")));
            }
            if had_lost {
                self.tell_lost_exports(id);
            }
        }
        Ok(())
    }

    /// The volume is gone.
    pub(super) fn detached(&mut self, id: VolumeId) {
        self.discarded(id, Ok(()));
        if let Some(mut served) = self.forget(id) {
            self.emit(PoolEvent::Detached { volume: served.spec.name.clone() });
            if let Some(waiting) = served.waiting.take() {
                self.answer_after_chores(waiting, served.attach_error.take().map_or(Ok(()), Err));
            }
        }
        self.stop_if_it_waits();
    }

    /// The volume stays, and is served as before.
    pub(super) fn detach_failed(&mut self, id: VolumeId, error: &LifecycleError) {
        self.discarded(id, Err(*error));
        if self.engine.volume_size_bytes(id).is_none() {
            // The cache was fenced in the middle of it: the volume is gone from it until the next
            // start.
            return self.attach_failed(id, error);
        }
        self.cancel_saving(id);
        let Some(served) = self.served_mut(id) else { return };
        served.saving = None;
        let (mut exports, rules) = (served.spec.exports.clone(), Arc::clone(&served.spec.rules));
        if self.stopping {
            exports.clear(); // nobody is served any more
        }
        self.server.add_volume(id, rules);
        self.export_all(id, &exports, Then::Back(*error));
        self.stop_if_it_waits();
    }

    // --- changing

    /// Begins to change the size of a volume whose backing store has `there_bytes`. One that is in
    /// use gets smaller only with `force`.
    pub fn resize(
        &mut self,
        name: &str,
        size_bytes: u64,
        there_bytes: u64,
        force: bool,
    ) -> Promise<Result<(), AdminError>> {
        let (done, promise) = Promise::pair();
        let begun = self.at_rest(name).and_then(|id| {
            self.check_backing_size(id, size_bytes, there_bytes)?;
            if let Some(device) = self.fixed_ublk(id) {
                return Err(cannot_resize(name, device));
            }
            let users = self.users_of(id);
            if !(force || users.is_empty()) && self.is_smaller(name, size_bytes) {
                return Err(users.refuse("shrink", name));
            }
            let now = self.io.now();
            self.engine
                .resize_volume(now, id, size_bytes)
                .map_err(|error| refused("resize", name, &error))?;
            if let Some(served) = self.served_mut(id) {
                served.waiting = Some(done.clone());
            }
            Ok(())
        });
        if let Err(error) = begun {
            let _ = done.try_send(Err(error));
        }
        promise
    }

    /// True if a volume has more bytes than these.
    pub fn is_smaller(&self, name: &str, size_bytes: u64) -> bool {
        let now = self.find(name).and_then(|id| self.engine.volume_size_bytes(id));
        now.is_some_and(|now| size_bytes < now)
    }

    /// The largest size that a volume may have: what its backing store has, unless that is cut.
    pub fn largest_size(&self, name: &str, there: u64) -> Result<u64, AdminError> {
        let id = self.known(name)?;
        let device = self.served(id).and_then(|served| self.reactor.device(served.device));
        match device.filter(|device| there < device.end_bytes()) {
            None => Ok(there),
            Some(device) => Err(AdminError::new(
                MessageId::BackingShrunk,
                format!(
                    "the backing store {} of {name} has {there} bytes, which is less than the {} that are served",
                    device.path().display(),
                    device.end_bytes()
                ),
                "bring back what is missing, or give the size in bytes",
            )),
        }
    }

    /// The backing store of a volume, for a thread that asks it something.
    pub fn store_of(&self, name: &str) -> Result<Device, AdminError> {
        let id = self.known(name)?;
        let device = self.served(id).and_then(|served| self.reactor.device(served.device));
        let device = device.ok_or_else(|| busy(name, "is being detached"))?;
        device.for_thread().map_err(|error| AdminError::new(MessageId::DeviceIo, error, ""))
    }

    fn check_backing_size(
        &mut self,
        id: VolumeId,
        size_bytes: u64,
        there_bytes: u64,
    ) -> Result<(), AdminError> {
        let Some((name, device)) = self.served(id).map(|served| (served.spec.name.clone(), served.device))
        else {
            return Ok(());
        };
        self.reactor.set_device_size(device, there_bytes);
        if size_bytes <= there_bytes {
            return Ok(());
        }
        Err(AdminError::new(
            MessageId::BackingTooSmall,
            format!("cannot resize {name} to {size_bytes} bytes: its backing store has {there_bytes}"),
            "enlarge the backing store first",
        ))
    }

    /// The engine has changed the size, or could not.
    pub(super) fn resized(&mut self, id: VolumeId, result: Result<u64, LifecycleError>) {
        let Some(served) = self.served_mut(id) else { return };
        let (name, waiting) = (served.spec.name.clone(), served.waiting.take());
        if let Ok(size_bytes) = result {
            served.spec.rules.set_volume_bytes(size_bytes);
            let device = served.device;
            self.reactor.set_device_end(device, size_bytes);
            self.io.note_resized(id);
            self.server.resize(id, size_bytes);
            self.resize_mounts(id, size_bytes);
            self.resize_ublks(id, size_bytes);
            self.resize_guests(id, size_bytes);
            self.emit(PoolEvent::Resized { volume: name.clone(), size_bytes });
        }
        if let Some(waiting) = waiting {
            let _ = waiting.try_send(result.map(drop).map_err(|error| refused("resize", &name, &error)));
        }
    }

    /// Changes settings of a volume.
    pub fn configure(&mut self, name: &str, settings: VolumeSettings) -> Result<(), AdminError> {
        let id = self.known(name)?;
        let now = self.io.now();
        self.engine
            .configure_volume(now, id, settings)
            .map_err(|error| AdminError::new(MessageId::SettingConflict, error, ""))?;
        if let Some(served) = self.served_mut(id) {
            served.spec.settings = settings;
        }
        Ok(())
    }

    /// Lets go of everything that a rule has pinned.
    pub fn unpin(&mut self, name: &str) -> Result<(), AdminError> {
        let id = self.known(name)?;
        let now = self.io.now();
        self.engine.unpin_all(now, id);
        Ok(())
    }

    /// Begins or ends a drain.
    pub fn set_drain(&mut self, name: &str, drain: Drain) -> Result<(), AdminError> {
        let id = self.known(name)?;
        let now = self.io.now();
        self.engine.set_drain(now, id, drain);
        Ok(())
    }

    /// How destage of a volume is.
    pub fn destage_of(&self, name: &str) -> Result<Destaging, AdminError> {
        let id = self.known(name)?;
        let report =
            self.engine.destage_report(id).ok_or_else(|| busy(name, "is being attached or detached"))?;
        let failures = self.served(id).map_or(0, |served| served.destage_failures);
        let nameless = self.check_store_has_name(name, "write back").err();
        Ok(Destaging { report, failures, not_permitted: self.why_not_permitted(id), nameless })
    }

    /// What is lost of a volume.
    pub fn loss_of(&self, name: &str) -> Result<Lost, AdminError> {
        Ok(self.lost_of(self.known(name)?))
    }

    /// Adds exports to a volume and takes others away; its clients at the latter are disconnected.
    /// The promise is kept when they are there.
    pub fn change_exports(
        &mut self,
        name: &str,
        more: &[ExportUri],
        less: &[ExportUri],
    ) -> Promise<Result<(), AdminError>> {
        let (done, promise) = Promise::pair();
        let id = self.at_rest(name).and_then(|id| match self.served(id) {
            _ if !less.is_empty() => Err(AdminError::new(
                MessageId::ExportRemoval,
                format!("exports of {name} cannot be taken away while it is served"),
                "detach it, keeping what is cached, and attach it again",
            )),
            Some(served) if served.exporting.is_some() => Err(busy(name, "is being given other exports")),
            _ => Ok(id),
        });
        match id {
            Ok(id) => self.export_all(id, more, Then::More(done)),
            Err(error) => drop(done.try_send(Err(error))),
        }
        promise
    }

    /// Changes settings of the pool.
    pub fn configure_pool(&mut self, settings: PoolSettings) -> Result<(), AdminError> {
        let now = self.io.now();
        let result = self.engine.configure_pool(now, settings);
        result.map_err(|error| AdminError::new(MessageId::SettingConflict, error, ""))
    }
}

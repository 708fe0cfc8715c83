//! Volumes of a pool: attaching, serving, changing and detaching them.
//!
//! Attach opens the device, attaches the volume in the engine, and makes the exports once the
//! engine's notice has come. Detach goes the other way: it closes the exports, so that no more
//! requests come in, then detaches the volume in the engine, then closes the device. In between,
//! the volume stays in the table with its state, so that nothing else takes its place.

use super::handle::PromiseSender;
use super::lost_exports::LostExports;
use super::saving::Saving;
use super::store_state::Outcomes;
use super::unplugged::Return;
use super::{Lost, Pool, PoolEvent, Promise};
use crate::frontends::{DeviceDisposition, ExclusiveOpens, NotExported, ServedVolume, ServedVolumes};
use crate::message::of_lifecycle;
use crate::meter::{History, Meter};
use crate::open::Backing;
use crate::ublk_device::UblkDevice;
use crate::witness::Prepared;
use forebay_admin::events::EventKind;
use forebay_admin::{AdminError, ErrorKind, MessageId, VolumeState};
use forebay_config::rules::RuleSet;
use forebay_core::{
    Attachment, DestageReport, DetachHow, Drain, LifecycleError, OnBackingChange, PoolSettings,
    VolumeSettings,
};
use forebay_export::uri::{BackingUri, ExportUri};
use forebay_format::VolumeId;
use forebay_format::checkpoint::{BackingRecord, VolumeEntry};
use forebay_io::{Device, DeviceId, IoFailure};
use std::sync::Arc;

/// How a volume should be served.
#[derive(Clone, Debug)]
pub struct VolumeSpec {
    /// Name.
    pub name: String,
    /// Backing store.
    pub backing: BackingUri,
    /// URIs under which clients find it.
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
    /// Identity of its backing store at the attach.
    pub(super) record: BackingRecord,
    /// How far an unplugged backing store is on its way back.
    pub(super) returns: Return,
    /// Its exports, each with the address that clients use.
    pub(super) exported: Vec<(ExportUri, String)>,
    pub(crate) meter: Meter,
    pub(crate) history: History,
    /// Destaged blocks at the last destage failure, if none has been destaged since.
    pub(crate) destage_failing_at: Option<u64>,
    /// Failed destage attempts.
    pub(crate) destage_failures: u64,
    /// The last failure of an operation that changes the backing store.
    pub(super) refused: Option<IoFailure>,
    /// Reported state of a network store that is away: the cause, and whether requests fail.
    pub(super) away: Option<(String, bool)>,
    /// Results of the last operations on its backing store.
    pub(super) outcomes: Outcomes,
    /// The witness of the backing store, until writes to it may begin.
    prepared: Option<Prepared>,
    /// Its backing file is being written to another path before it is closed.
    pub(super) saving: Option<Arc<Saving>>,
    /// Why that failed.
    pub(super) not_saved: Option<AdminError>,
    /// The caller that waits for the end of the current change.
    waiting: Option<Done>,
    /// Why the attach failed; the volume is being detached again.
    attach_error: Option<AdminError>,
    /// Exports being made.
    pub(super) exporting: Option<Exporting>,
    /// Exports that another program has removed or hidden.
    pub(super) lost_exports: LostExports,
}

impl ServedVolumes for Vec<Option<Served>> {
    fn served(&self, volume: VolumeId) -> Option<ServedVolume<'_>> {
        let Served { spec, sector_bytes, exporting, .. } = self.get(usize::from(volume.0))?.as_ref()?;
        Some(ServedVolume {
            name: &spec.name,
            backing: &spec.backing,
            rules: &spec.rules,
            connections_max: spec.connections_max,
            sector_bytes: *sector_bytes,
            is_exporting: exporting.is_some(),
        })
    }
}

impl Served {
    /// The backing store is another device now: clears the results of the previous one.
    pub(super) fn note_new_device(&mut self) {
        (self.refused, self.outcomes) = (None, Outcomes::default());
    }
}

/// State of a volume's destage.
#[derive(Debug)]
pub struct Destaging {
    /// The engine's report.
    pub report: DestageReport,
    /// Failed attempts.
    pub failures: u64,
    /// Why writes to the backing store are not permitted, if the last attempt failed for that
    /// reason.
    pub not_permitted: Option<String>,
    /// The backing file no longer has a name: data written to it is lost once it is closed.
    pub nameless: Option<AdminError>,
}

/// Exports of a volume being made.
pub(super) struct Exporting {
    /// Exports that are not finished.
    left: usize,
    /// The first failure.
    problem: Option<NotExported>,
    then: Then,
}

/// Next step once the exports are made.
enum Then {
    /// The volume is attached.
    Attached,
    /// The detach failed with this error: the volume is served as before.
    Back(LifecycleError),
    /// It has more exports than before.
    More(Done),
}

/// Returns the operator's error for a change that the engine refuses.
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
            "check the backing device and the latest writes; nothing was changed, and the same command tries \
             again"
        }
        _ => "",
    };
    AdminError::new(of_lifecycle(error), format!("cannot {doing} {name}: {error}"), hint).of_kind(kind)
}

/// Error for a backing store that changed under dirty data. Its commands must work as printed.
fn changed(name: &str, error: &LifecycleError) -> AdminError {
    AdminError::new(
        MessageId::Event(EventKind::BackingChanged),
        format!("cannot attach {name}: {error}"),
        format!(
            "if it is the wrong one (devices may have other names now), give the one that belongs to this \
             cache: forebay volume attach {name} --backing URI; if it is the right one and the changes on it \
             may be lost: forebay set {name} on_backing_change=keep-dirty, then forebay volume attach \
             {name}; if the dirty data in the cache may be lost: the same with discard-dirty (`forebay run` \
             takes --set on_backing_change=...)"
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
        "detach it, keeping its cached blocks, and attach it again with the other size",
    )
}

/// Returns how many bytes of the backing store to serve.
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

    /// Returns the number of the volume with this name.
    pub fn find(&self, name: &str) -> Option<VolumeId> {
        let named = |served: &Option<Served>| served.as_ref().is_some_and(|served| served.spec.name == name);
        self.volumes.iter().position(named).map(|index| VolumeId(index as u16))
    }

    /// Names of all volumes that are attached, being attached or being detached.
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

    /// Returns a volume that is served and not being attached, drained or detached.
    fn at_rest(&self, name: &str) -> Result<VolumeId, AdminError> {
        let id = self.known(name)?;
        match self.served(id).map(|served| served.state) {
            Some(VolumeState::Serving) => Ok(id),
            Some(VolumeState::Attaching) => Err(busy(name, "is being attached")),
            _ => Err(busy(name, "is being detached")),
        }
    }

    // --- attach

    /// Begins to attach a volume; the promise resolves when clients can connect.
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

    /// The cache's table entry of a volume, attached or not.
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
        // The state of the volume beyond its recorded end is unknown: a shrink may have been in
        // flight when the cache failed.
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
            crate::time_limit::drop_in_background(self.reactor.remove_device(device));
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
            away: None,
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

    /// Returns the size of a volume with a cache. An attach never shrinks a volume, because blocks
    /// beyond the configured end may be dirty: the size that the cache has recorded stays until a
    /// resize.
    fn size_with_cache(&mut self, entry: &VolumeEntry, configured_bytes: u64, backing: &Backing) -> u64 {
        let recorded_bytes = entry.size_bytes;
        if configured_bytes >= recorded_bytes || recorded_bytes > backing.size_bytes {
            return configured_bytes;
        }
        let name = &entry.name;
        let note = format!(
            "{name} has {recorded_bytes} bytes, not {configured_bytes} as configured: an attach does not \
             shrink a volume; to shrink it: forebay volume resize {name} {configured_bytes}"
        );
        self.emit(PoolEvent::Note(MessageId::VolumeSize, note));
        recorded_bytes
    }

    /// Returns the volume's entry in the cache's table, or a new one.
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
                format!("pool {} has the maximum number of volumes", self.name),
                "detach one, or create another pool",
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

    /// The engine has attached the volume: makes its exports.
    pub(super) fn attached(&mut self, id: VolumeId) {
        let size_bytes = self.engine.volume_size_bytes(id).unwrap_or(0);
        let Some(served) = self.served_mut(id) else { return };
        let prepared = served.prepared.take();
        let watch = prepared.map(|prepared| prepared.begin(&served.spec.name));
        served.spec.rules.set_volume_bytes(size_bytes);
        let (uris, rules) = (served.spec.exports.clone(), Arc::clone(&served.spec.rules));
        self.io.set_watch(id, watch);
        self.frontends.nbd.add_volume(id, rules);
        self.export_all(id, &uris, Then::Attached);
    }

    /// Begins to make exports; `then` follows when the last of them is made or has failed.
    fn export_all(&mut self, id: VolumeId, uris: &[ExportUri], then: Then) {
        let Some(served) = self.served_mut(id) else { return };
        // Exports from an earlier, partly failed attempt are still there.
        let is_made = |uri: &ExportUri| served.exported.iter().any(|(exported, _)| exported == uri);
        let missing: Vec<&ExportUri> = uris.iter().filter(|uri| !is_made(uri)).collect();
        // One more than missing, so that the count reaches zero only after the loop.
        served.exporting = Some(Exporting { left: missing.len() + 1, problem: None, then });
        for uri in missing {
            match self.with_frontends(|frontends, cx| frontends.export(cx, id, uri)) {
                Ok(Some(text)) => self.exported(id, uri, Ok::<_, NotExported>(text)),
                Ok(None) => {} // an event has the result later
                Err(what) => self.exported(id, uri, Err(what)),
            }
        }
        self.one_exported(id);
    }

    /// An export is made (`Ok` has its address for clients), or has failed.
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

    /// All exports of a new volume are made, or one of them has failed.
    fn attached_with(&mut self, id: VolumeId, result: Result<(), AdminError>) {
        let Some(served) = self.served_mut(id) else { return };
        let waiting = served.waiting.take();
        served.state = VolumeState::Serving;
        let (waiting, failed) = match (result, waiting) {
            // The caller may have timed out and reported a failure: then the attach is undone.
            (Ok(()), waiting) => match waiting.map(|waiting| waiting.try_send(Ok(()))) {
                Some(Err(_)) => (None, None),
                _ => return,
            },
            (Err(error), waiting) => (waiting, Some(error)),
        };
        served.attach_error.clone_from(&failed);
        // No client has written to the volume yet, so its cached blocks stay for the next attempt.
        // So does a block device that has been in use since before this start. The caller gets the
        // answer once the volume is detached again.
        if let Err(error) =
            self.begin_detach(id, DetachHow::Keep, waiting.clone(), DeviceDisposition::RemoveUnused)
        {
            let name = self.name_of(id);
            let what = format!("the exports of {name} stay: {}", error.what);
            self.emit(PoolEvent::Note(error.id, what));
            if let (Some(waiting), Some(failed)) = (waiting, failed) {
                let _ = waiting.try_send(Err(failed));
            }
        }
    }

    /// Returns why the daemon cannot rule out a change of the backing store of a volume being
    /// attached.
    pub(super) fn doubt_about(&self, id: VolumeId) -> String {
        let prepared = self.served(id).and_then(|served| served.prepared.as_ref());
        prepared.map_or_else(String::new, |prepared| prepared.why.clone())
    }

    /// The engine refused the volume.
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
        crate::time_limit::drop_in_background(std::mem::take(&mut served.returns));
        self.io.set_backing(id, None);
        self.recorder.volume_gone(id);
        self.forget_device(served.device);
        self.close_remote(served.device);
        if served.away.is_some() {
            self.emit(PoolEvent::StoreBack { volume: served.spec.name.clone(), answers: false });
        }
        let known = self.engine.volume_table().iter().any(|entry| entry.id == id);
        match self.io.set_watch(id, None) {
            Some(watch) if !known || served.saving.is_some() => watch.forget(),
            _ => {} // kept for the next attach
        }
        match self.reactor.remove_device(served.device) {
            Some(device) => crate::time_limit::drop_in_background(device), // closing it may block
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

    /// Switches the volume to write-through and destages its dirty blocks as fast as possible, for
    /// the job of a detach. [`Pool::end_draining`] ends it.
    pub fn begin_draining(&mut self, name: &str) -> Result<(), AdminError> {
        let id = self.at_rest(name)?;
        let now = self.io.now();
        self.engine.begin_detach(now, id).map_err(|error| refused("drain", name, &error))?;
        if let Some(served) = self.served_mut(id) {
            served.state = VolumeState::Draining;
        }
        Ok(())
    }

    /// Ends the drain of a detach that was cancelled.
    pub fn end_draining(&mut self, name: &str) {
        let Some(id) = self.find(name).filter(|id| self.cancel_saving(*id)) else { return };
        let now = self.io.now();
        if let Err(error) = self.engine.cancel_detach(now, id) {
            self.emit(PoolEvent::Note(
                MessageId::ExportFailed,
                format!("cannot resume serving {name}: {error}"),
            ));
            return;
        }
        if let Some(served) = self.served_mut(id)
            && served.state == VolumeState::Draining
        {
            served.state = VolumeState::Serving;
        }
    }

    /// Detaches a volume; the promise resolves when the cache has forgotten it (or, for a kept
    /// volume, has recorded the state of its backing store). Refuses a volume in use unless
    /// `force`; the check runs here, where no client can connect in between. It cannot see users of
    /// block devices: `claims` keep others off the unused ones.
    pub fn detach(
        &mut self,
        name: &str,
        how: DetachHow,
        force: bool,
        claims: ExclusiveOpens,
    ) -> Promise<Result<(), AdminError>> {
        let (done, promise) = Promise::pair();
        let detachable = self.detachable(name, force).and_then(|id| match how {
            DetachHow::Discard => Ok(id), // its file is given up as well
            DetachHow::Drained | DetachHow::Keep => self.check_store_has_name(name, "detach").map(|()| id),
        });
        let begun = match detachable {
            Ok(id) => self.begin_detach(id, how, Some(done.clone()), DeviceDisposition::Remove(claims)),
            Err(error) => {
                crate::time_limit::drop_in_background(claims);
                Err(error)
            }
        };
        if let Err(error) = begun {
            let _ = done.try_send(Err(error));
        }
        promise
    }

    /// Returns a volume that can be detached now, with `force` even one in use.
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
        devices: DeviceDisposition,
    ) -> Result<(), AdminError> {
        let name = self.served(id).map(|served| served.spec.name.clone()).unwrap_or_default();
        let now = self.io.now();
        if let Err(error) = self.engine.detach_volume(now, id, how) {
            devices.release();
            return Err(refused("detach", &name, &error));
        }
        self.with_frontends(|frontends, cx| frontends.close(cx, Some(id), devices));
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

    /// The engine has detached the volume.
    pub(super) fn detached(&mut self, id: VolumeId) {
        self.discarded(id, Ok(()));
        if let Some(mut served) = self.forget(id) {
            self.emit(PoolEvent::Detached { volume: served.spec.name.clone() });
            if let Some(waiting) = served.waiting.take() {
                let answer = served.attach_error.take().map_or(Ok(()), Err);
                self.background.when_done(move || drop(waiting.try_send(answer)));
            }
        }
        self.stop_if_it_waits();
    }

    /// The detach failed: the volume stays and is served as before.
    pub(super) fn detach_failed(&mut self, id: VolumeId, error: &LifecycleError) {
        self.discarded(id, Err(*error));
        if self.engine.volume_size_bytes(id).is_none() {
            // The cache was fenced during the detach, so it no longer has the volume until the next
            // start.
            return self.attach_failed(id, error);
        }
        self.cancel_saving(id);
        let Some(served) = self.served_mut(id) else { return };
        served.saving = None;
        let (mut exports, rules) = (served.spec.exports.clone(), Arc::clone(&served.spec.rules));
        if self.stopping {
            exports.clear(); // a stopping pool makes no exports
        }
        self.frontends.nbd.add_volume(id, rules);
        self.export_all(id, &exports, Then::Back(*error));
        self.stop_if_it_waits();
    }

    // --- changing

    /// Begins to change the size of a volume whose backing store has `there_bytes`. Shrinks a
    /// volume in use only with `force`.
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
            if let Some(device) = self.frontends.fixed_device(id) {
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

    /// Returns true if the volume is larger than `size_bytes`.
    pub fn is_smaller(&self, name: &str, size_bytes: u64) -> bool {
        let now = self.find(name).and_then(|id| self.engine.volume_size_bytes(id));
        now.is_some_and(|now| size_bytes < now)
    }

    /// Returns the largest size that a volume may have: that of its backing store, unless it was
    /// cut.
    pub fn largest_size(&self, name: &str, there: u64) -> Result<u64, AdminError> {
        let id = self.known(name)?;
        let device = self.served(id).and_then(|served| self.reactor.device(served.device));
        match device.filter(|device| there < device.end_bytes()) {
            None => Ok(there),
            Some(device) => Err(AdminError::new(
                MessageId::BackingShrunk,
                format!(
                    "the backing store {} of {name} has {there} bytes, but {} are served",
                    device.path().display(),
                    device.end_bytes()
                ),
                "restore the missing part, or give the size in bytes",
            )),
        }
    }

    /// Returns a handle of a volume's backing store for another thread.
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

    /// The engine has resized the volume, or has failed to.
    pub(super) fn resized(&mut self, id: VolumeId, result: Result<u64, LifecycleError>) {
        let Some(served) = self.served_mut(id) else { return };
        let (name, waiting) = (served.spec.name.clone(), served.waiting.take());
        if let Ok(size_bytes) = result {
            served.spec.rules.set_volume_bytes(size_bytes);
            let device = served.device;
            self.reactor.set_device_end(device, size_bytes);
            self.io.note_resized(id);
            self.with_frontends(|frontends, cx| frontends.resize(cx, id, size_bytes));
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

    /// Unpins all blocks that rules have pinned.
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

    /// State of a volume's destage.
    pub fn destage_of(&self, name: &str) -> Result<Destaging, AdminError> {
        let id = self.known(name)?;
        let report =
            self.engine.destage_report(id).ok_or_else(|| busy(name, "is being attached or detached"))?;
        let failures = self.served(id).map_or(0, |served| served.destage_failures);
        let nameless = self.check_store_has_name(name, "write back").err();
        Ok(Destaging { report, failures, not_permitted: self.why_not_permitted(id), nameless })
    }

    /// Amount of lost data of a volume.
    pub fn loss_of(&self, name: &str) -> Result<Lost, AdminError> {
        Ok(self.lost_of(self.known(name)?))
    }

    /// Adds exports to a volume; refuses to remove any (`less`). The promise resolves when the
    /// exports are made.
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
                format!("exports of {name} cannot be removed while it is attached"),
                "detach it, keeping its cached blocks, and attach it again",
            )),
            Some(served) if served.exporting.is_some() => Err(busy(name, "is having its exports changed")),
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

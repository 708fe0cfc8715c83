//! Mirrored pools: their restrictions, and replacing a failed device.
//!
//! The configuration names the new device before it is written to: after a crash the next start
//! finds it there, empty, and restarts the rebuild.

use super::catalog::StoredConfig;
use super::errors::invalid;
use super::opening::Allowed;
use super::pool_query::ask;
use super::{Service, ServiceEvent};
use forebay_admin::Taking;
use forebay_admin::jobs::{JobKind, JobSpec};
use forebay_admin::size::ByteSize;
use forebay_admin::{AdminError, ErrorKind, MessageId, PoolInfo};
use forebay_config::{CacheSpec, Edit};
use forebay_pool::cache_device::new_tag;
use forebay_pool::cache_device::{begin_on, is_same};
use forebay_pool::{Mirrored, PoolHandle};
use std::path::Path;
use std::time::{Duration, Instant};

/// Time limit for operations on a failed device, and the polling interval.
const TIMEOUT: Duration = Duration::from_secs(4);
const LOOK: Duration = Duration::from_millis(50);

impl Service {
    /// Refuses a mirrored pool, whose size is fixed at creation.
    pub(super) fn check_unmirrored(&self, name: &str) -> Result<(), AdminError> {
        if self.pool_snapshot(name)?.mirror.is_none() {
            return Ok(());
        }
        Err(AdminError::new(
            MessageId::PoolMirrored,
            format!("pool {name} is mirrored: its size cannot be changed"),
            format!("to replace a failed device: forebay pool replace {name} --device PATH[:SIZE]"),
        ))
    }

    /// Checks the number of devices of a new cache: two if the pool is mirrored.
    pub(super) fn check_devices_wanted(&self, name: &str, given: usize) -> Result<(), AdminError> {
        match (self.catalog.is_mirrored(name), given) {
            (true, 2) | (false, 1) => Ok(()),
            (true, _) => Err(invalid(
                MessageId::PoolBothFailed,
                format!("pool {name} is mirrored, and both of its devices have failed"),
                "give two new ones: --device PATH --device PATH",
            )),
            (false, _) => Err(invalid(
                MessageId::PoolNotMirrored,
                format!("pool {name} is not mirrored"),
                "give one new device; pool grow adds others",
            )),
        }
    }

    /// Replaces the device of a mirrored pool that is out, without an interruption; a job monitors
    /// the rebuild.
    pub(super) fn replace_member(
        &self,
        name: &str,
        devices: &[CacheSpec],
        mirror: &Mirrored,
        taking: Taking,
        file: &mut StoredConfig,
    ) -> Result<PoolInfo, AdminError> {
        let [spec] = devices else {
            let what = format!("one device of pool {name} is healthy");
            return Err(invalid(
                MessageId::PoolDeviceCount,
                what,
                "give one new device to replace the other",
            ));
        };
        let handle = self.handle(name)?;
        let bytes = self.pool_snapshot(name)?.devices.first().map_or(0, |(_, bytes)| *bytes);
        if spec.size_bytes.is_some_and(|size| size < bytes) {
            return Err(too_small(spec, bytes));
        }
        Self::let_go(&handle)?;
        let (config, _) = self.catalog.with_volumes(name)?;
        let allowed = Allowed::to_create(taking);
        let opened = self.devices.open_unused(spec, self.opening(name, &config, allowed))?;
        if opened.size_bytes() < bytes {
            return Err(too_small(spec, bytes));
        }
        let opened = self.devices.with_devices(std::slice::from_ref(spec), move |may_wait| {
            begin_on(may_wait, &opened).map(|()| opened)
        })??;
        let tag = new_tag()?;
        let survivor = mirror.state.out.and_then(|out| mirror.paths[usize::from(1 - out)].as_deref());
        let old = self.catalog.devices_of(name);
        let new = devices_after(&old, survivor, spec);
        let edit = |devices| [Edit::SetDevices { pool: name.into(), devices }];
        file.commit(&edit(new.clone()), &edit(old), || {
            ask(&handle, move |pool| pool.replace_member(opened, tag))?
        })?;
        self.catalog.set_devices(name, new);
        self.watch_rebuild(name);
        self.pool_info(name)
    }

    /// Makes the pool close the device that is out, once its operations have ended.
    fn let_go(handle: &PoolHandle) -> Result<(), AdminError> {
        let since = Instant::now();
        loop {
            match ask(handle, |pool| pool.let_go_of_member())? {
                Err(error) if error.kind == ErrorKind::Unavailable && since.elapsed() < TIMEOUT => {
                    std::thread::sleep(LOOK);
                }
                other => return other,
            }
        }
    }

    /// Starts a job for the rebuild of a device, which shows its progress and can end it.
    pub(super) fn watch_rebuild(&self, name: &str) {
        let Ok(snapshot) = self.pool_snapshot(name) else { return };
        let Some(mirror) = snapshot.mirror else { return };
        if mirror.state.rebuild.is_none() {
            return;
        }
        if let Err(error) = self.jobs.begin(JobSpec::pool(JobKind::Rebuild, name)) {
            self.telemetry.emit(ServiceEvent::Problem(
                error.id,
                format!("pool {name} is rebuilt without a job: {}", error.what),
            ));
        }
    }
}

fn too_small(spec: &CacheSpec, bytes: u64) -> AdminError {
    invalid(
        MessageId::DeviceTooSmall,
        format!(
            "{} is smaller than the other device of the pool: it needs {}",
            spec.path.display(),
            ByteSize(bytes)
        ),
        "give a device at least as large",
    )
}

/// Returns the devices in the order of the configuration, with a new one in place of the one that
/// is not the survivor. Without sizes: an existing device is used as it is, and a missing file must
/// not be recreated empty.
fn devices_after(old: &[CacheSpec], survivor: Option<&str>, new: &CacheSpec) -> Vec<CacheSpec> {
    let bare = |path: &Path| CacheSpec { path: path.to_owned(), size_bytes: None };
    let survives = |spec: &CacheSpec| {
        survivor.is_some_and(|path| spec.path == Path::new(path) || is_same(&spec.path, Path::new(path)))
    };
    match old {
        [a, b] if survives(a) != survives(b) => {
            [a, b].map(|spec| bare(if survives(spec) { &spec.path } else { &new.path })).into()
        }
        _ => survivor.map(Path::new).into_iter().chain([new.path.as_path()]).map(bare).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_device_takes_the_old_position() {
        let spec = |path: &str| CacheSpec { path: path.into(), size_bytes: Some(1 << 30) };
        let paths = |old: &[CacheSpec], survivor| {
            let after = devices_after(old, survivor, &spec("/new"));
            assert!(after.iter().all(|spec| spec.size_bytes.is_none()));
            after.iter().map(|spec| spec.path.display().to_string()).collect::<Vec<_>>()
        };
        let old = [spec("/a"), spec("/b")];
        assert_eq!(paths(&old, Some("/a")), ["/a", "/new"]);
        assert_eq!(paths(&old, Some("/b")), ["/new", "/b"]);
        assert_eq!(paths(&old, Some("/elsewhere")), ["/elsewhere", "/new"]);
    }
}

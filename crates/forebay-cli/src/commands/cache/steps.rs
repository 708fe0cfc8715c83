//! The steps that put a cache in front of a mounted disk and take it away: each as shell commands,
//! and as the action itself.
//!
//! Invariants
//! - A step reports whether its effect is already present. Such a step is skipped, so an
//!   interrupted list of steps can be run again from its beginning.
//! - Most steps have an inverse, which is a step as well: rollback runs the inverses in reverse
//!   order.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_admin::{
    Leaving, MessageId, PoolRequest, SettingsDone, SettingsRequest, VolumeInfo, VolumeRequest, VolumeState,
};
use forebay_pool::{MayWait, ublk_found};
use serde::{Deserialize, Serialize};

use super::disk::{is_mounted_from, text};
use super::fstab::{self, Change, FSTAB};
use super::mounts::{Mount, Mounts};
use super::service::{DRIVER, DROP_IN, DROP_IN_FOLDER, Service, UNIT, has_systemd};
use super::{shell, users};
use crate::client::{self, Client, escaped};
use crate::failure::{Failure, system};
use crate::job::{self, Job};
use crate::screen::harmless;

/// Time limit for the first answer of a daemon that was just started.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Time limit for an operation that another process began, for example one that was killed.
const OTHERS_WITHIN: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(100);

/// A file system at its mount point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mounted {
    /// The block device.
    pub(super) source: PathBuf,
    /// The mount point.
    pub(super) point: PathBuf,
    /// Type of the file system, if fstab has no line for it.
    pub(super) kind: Option<String>,
    /// Options, if fstab has no line for it.
    pub(super) options: Vec<String>,
}

impl Mounted {
    fn words(&self) -> Vec<String> {
        let mut words = vec!["mount".to_owned()];
        if let Some(kind) = &self.kind {
            words.extend(["-t".into(), kind.clone()]);
        }
        if !self.options.is_empty() {
            words.extend(["-o".into(), self.options.join(",")]);
        }
        if self.kind.is_some() {
            words.push(self.source.display().to_string());
        }
        words.push(self.point.display().to_string());
        words
    }

    /// Returns the present mount at the mount point, if there is one.
    pub(super) fn now(&self) -> Result<Option<Mount>, Failure> {
        let mounts = Mounts::read().map_err(system("cannot read the list of mounts"))?;
        let top = mounts.at(&self.point).last().cloned();
        Ok(top.filter(|mount| is_mounted_from(mount, &self.source)))
    }
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Step {
    /// Load the kernel's driver for block devices.
    LoadDriver,
    /// Permit the service to create block devices from its next restart on.
    AddDropIn {
        from: PathBuf,
    },
    RemoveDropIn,
    /// Start the service now, and enable it at boot.
    StartService {
        enable: bool,
        start: bool,
    },
    StopService {
        disable: bool,
        stop: bool,
    },
    /// Restart the service; it serves no volumes.
    RestartService,
    CreatePool(PoolRequest),
    /// Remove the pool; its devices are as good as new then.
    RemovePool {
        name: String,
    },
    Unmount(Mounted),
    Mount(Mounted),
    Attach(VolumeRequest),
    Detach {
        volume: String,
    },
    /// Edit a line of fstab.
    Edit(Change),
    /// Drain the volume in write-through, so that nothing becomes dirty while it is in use.
    Drain {
        volume: String,
        mode: String,
    },
    SetMode {
        volume: String,
        mode: String,
    },
    /// Destage all dirty blocks.
    Flush {
        volume: String,
    },
}

impl Step {
    /// Returns the equivalent shell commands.
    pub(super) fn commands(&self) -> Vec<String> {
        let reload = || "systemctl daemon-reload".to_owned();
        match self {
            Self::LoadDriver => vec!["modprobe ublk_drv".into()],
            Self::AddDropIn { from } => {
                let from = from.display().to_string();
                vec![shell::line(["install", "-D", "-m", "644", "-t", DROP_IN_FOLDER, &from]), reload()]
            }
            Self::RemoveDropIn => vec![format!("rm {DROP_IN_FOLDER}/{DROP_IN}"), reload()],
            Self::StartService { enable, start } => vec![systemctl("enable", *enable, "start", *start)],
            Self::StopService { disable, stop } => vec![systemctl("disable", *disable, "stop", *stop)],
            Self::RestartService => vec![format!("systemctl restart {UNIT}")],
            Self::CreatePool(request) => vec![create_command(request)],
            Self::RemovePool { name } => vec![shell::line(["forebay", "pool", "remove", name, "--erase"])],
            Self::Unmount(mounted) => {
                vec![shell::line(["umount", &mounted.point.display().to_string()])]
            }
            Self::Mount(mounted) => vec![shell::line(mounted.words())],
            Self::Attach(request) => vec![attach_command(request)],
            Self::Detach { volume } => vec![shell::line(["forebay", "volume", "detach", volume])],
            Self::Edit(change) => {
                let reload = has_systemd().then(reload);
                std::iter::once(change.command()).chain(reload).collect()
            }
            Self::Drain { volume, .. } => {
                vec![shell::line(["forebay", "set", volume, "mode=writethrough", "--drain", "--temporary"])]
            }
            Self::SetMode { volume, mode } => {
                vec![shell::line(["forebay", "set", volume, &format!("mode={mode}"), "--temporary"])]
            }
            Self::Flush { volume } => vec![shell::line(["forebay", "flush", volume])],
        }
    }

    /// Returns the inverse step; `None` if there is nothing to undo, or no way to do it.
    pub(super) fn opposite(&self) -> Option<Self> {
        match self {
            Self::AddDropIn { .. } => Some(Self::RemoveDropIn),
            Self::StartService { enable, start } => {
                Some(Self::StopService { disable: *enable, stop: *start })
            }
            Self::CreatePool(request) => Some(Self::RemovePool { name: request.name.clone() }),
            Self::Unmount(mounted) => Some(Self::Mount(mounted.clone())),
            Self::Mount(mounted) => Some(Self::Unmount(mounted.clone())),
            Self::Attach(request) => Some(Self::Detach { volume: request.name.clone() }),
            Self::Edit(change) => Some(Self::Edit(change.reversed())),
            Self::Drain { volume, mode } => {
                Some(Self::SetMode { volume: volume.clone(), mode: mode.clone() })
            }
            // A loaded driver does no harm, and a restarted service runs as before.
            Self::LoadDriver
            | Self::RestartService
            | Self::RemoveDropIn
            | Self::StopService { .. }
            | Self::RemovePool { .. }
            | Self::Detach { .. }
            | Self::SetMode { .. }
            | Self::Flush { .. } => None,
        }
    }

    /// Returns true if the effect of the step is already present.
    ///
    /// # Errors
    /// The state cannot be determined: the daemon does not answer, for instance.
    pub(super) fn is_so(&self, client: &Client) -> Result<bool, Failure> {
        let drop_in = Path::new(DROP_IN_FOLDER).join(DROP_IN);
        Ok(match self {
            Self::LoadDriver => Path::new(DRIVER).exists(),
            Self::AddDropIn { .. } => drop_in.exists(),
            Self::RemoveDropIn => !drop_in.exists(),
            Self::StartService { enable, start } => {
                Service::look().is_some_and(|now| (now.is_enabled || !enable) && (now.is_active || !start))
            }
            Self::StopService { disable, stop } => {
                Service::look().is_none_or(|now| !(now.is_enabled && *disable || now.is_active && *stop))
            }
            Self::RestartService => {
                let info = client.get("/v1/daemon").ok().and_then(|info| client::read(&info).ok());
                info.is_some_and(|info| super::service::Daemon::new(&info).may_make())
            }
            Self::CreatePool(request) => pool_is_there(client, &request.name)?,
            Self::RemovePool { name, .. } => !pool_is_there(client, name)?,
            Self::Unmount(mounted) => mounted.now()?.is_none(),
            Self::Mount(mounted) => mounted.now()?.is_some(),
            Self::Attach(request) => {
                settled(client, &request.name)?.is_some_and(|volume| volume.state.is_served())
            }
            Self::Detach { volume } => volume_info(client, volume)?.is_none(),
            Self::Edit(change) => change.is_made(&fstab::read(Path::new(FSTAB)).map_err(system(FSTAB))?),
            Self::Drain { volume, mode } => volume_info(client, volume)?.is_none_or(|now| {
                now.job.is_none()
                    && now.dirty_bytes == Some(0)
                    && (now.mode != *mode || now.state == VolumeState::Absent)
            }),
            Self::SetMode { volume, mode } => {
                volume_info(client, volume)?.is_none_or(|now| now.mode == *mode && now.job.is_none())
            }
            Self::Flush { volume } => {
                volume_info(client, volume)?.is_none_or(|now| now.dirty_bytes == Some(0))
            }
        })
    }

    /// For rollback: returns true if the effect of the inverse is present, or the original step was
    /// never done.
    ///
    /// # Errors
    /// As [`Self::is_so`].
    pub(super) fn is_undone(&self, client: &Client) -> Result<bool, Failure> {
        if let Self::Edit(change) = self {
            let table = fstab::read(Path::new(FSTAB)).map_err(system(FSTAB))?;
            return Ok(change.is_made(&table) || change.has_nothing_to_change(&table));
        }
        self.is_so(client)
    }

    /// Returns true if the step also notifies systemd of a changed file: whether that was done is
    /// not visible in the state.
    pub(super) fn has_two_halves(&self) -> bool {
        matches!(self, Self::AddDropIn { .. } | Self::Edit(_))
    }

    /// Executes the step.
    ///
    /// # Errors
    /// The step fails, with the error of the failed action.
    pub(super) fn act(&self, client: &Client) -> Result<(), Failure> {
        match self {
            Self::LoadDriver => {
                shell::run(&["modprobe", "ublk_drv"])?;
                let there = ublk_found::devices(&MayWait::here());
                there.map(drop).map_err(|why| Failure::new(MessageId::AttachBlockDevices, why))
            }
            Self::AddDropIn { from } => {
                let from = text(from).unwrap_or_default();
                shell::run(&["install", "-D", "-m", "644", "-t", DROP_IN_FOLDER, from])?;
                shell::run(&["systemctl", "daemon-reload"])
            }
            Self::RemoveDropIn => {
                let path = Path::new(DROP_IN_FOLDER).join(DROP_IN);
                std::fs::remove_file(&path).map_err(system(path.display()))?;
                shell::run(&["systemctl", "daemon-reload"])
            }
            Self::StartService { enable, start } => {
                run_systemctl("enable", *enable, "start", *start)?;
                if *start { answers(client) } else { Ok(()) }
            }
            Self::StopService { disable, stop } => run_systemctl("disable", *disable, "stop", *stop),
            Self::RestartService => {
                shell::run(&["systemctl", "restart", UNIT])?;
                answers(client)
            }
            Self::CreatePool(request) => client.post("/v1/pools", Some(request)).map(drop),
            Self::RemovePool { name } => {
                let job = client.delete(&format!("/v1/pools/{}?erase=true", escaped(name)))?;
                follow(client, &client::read::<Job>(&job)?.id)
            }
            Self::Unmount(mounted) => unmount(mounted),
            Self::Mount(mounted) => {
                let words = mounted.words();
                shell::run(&words.iter().map(String::as_str).collect::<Vec<_>>())
            }
            Self::Attach(request) => client.post("/v1/volumes", Some(request)).map(drop),
            Self::Detach { volume } => detach(client, volume),
            Self::Edit(change) => edit(change),
            Self::Drain { volume, mode } => drain(client, volume, mode),
            Self::SetMode { volume, mode } => {
                cancel_job(client, volume)?;
                set_mode(client, volume, mode, Leaving::Lazy)
            }
            Self::Flush { volume } => {
                let job = client.post_nothing(&format!("/v1/volumes/{}/flush", escaped(volume)))?;
                follow(client, &client::read::<Job>(&job)?.id)
            }
        }
    }
}

/// Returns one systemctl command for two actions.
fn systemctl(both: &str, is_first: bool, second: &str, is_second: bool) -> String {
    match (is_first, is_second) {
        (true, true) => format!("systemctl {both} --now {UNIT}"),
        (true, false) => format!("systemctl {both} {UNIT}"),
        _ => format!("systemctl {second} {UNIT}"),
    }
}

fn run_systemctl(both: &str, is_first: bool, second: &str, is_second: bool) -> Result<(), Failure> {
    let command = systemctl(both, is_first, second, is_second);
    shell::run(&command.split(' ').collect::<Vec<_>>())
}

fn create_command(request: &PoolRequest) -> String {
    let mut words = vec!["forebay".to_owned(), "pool".into(), "create".into(), request.name.clone()];
    let is_mirror = |(key, value): &(&String, &String)| *key == "mirror" && *value == "on";
    if request.settings.iter().any(|pair| is_mirror(&pair)) {
        words.push("--mirror".into());
    }
    for device in &request.devices {
        let size = device.size.as_ref().map_or(String::new(), |size| format!(":{size}"));
        words.extend(["--device".into(), format!("{}{size}", device.path)]);
    }
    words.extend(request.settings.iter().filter(|pair| !is_mirror(pair)).flat_map(setting));
    let flags =
        [(request.overwrite, "--overwrite"), (request.fill, "--fill"), (request.new_cache, "--new-cache")];
    words.extend(flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag.to_owned()));
    shell::line(words)
}

fn attach_command(request: &VolumeRequest) -> String {
    let mut words = vec!["forebay".to_owned(), "volume".into(), "attach".into(), request.name.clone()];
    words.extend(request.pool.iter().flat_map(|pool| ["--pool".to_owned(), pool.clone()]));
    words.extend(["--backing".into(), request.backing.clone()]);
    words.extend(request.exports.iter().flat_map(|export| ["--export".to_owned(), export.clone()]));
    words.extend(request.settings.iter().flat_map(setting));
    shell::line(words)
}

fn setting((key, value): (&String, &String)) -> [String; 2] {
    ["--set".into(), format!("{key}={value}")]
}

fn answers(client: &Client) -> Result<(), Failure> {
    let until = Instant::now() + ANSWER_WITHIN;
    loop {
        match client.get("/v1/daemon") {
            Err(_) if Instant::now() < until => std::thread::sleep(LOOK),
            answer => return answer.map(drop),
        }
    }
}

fn pool_is_there(client: &Client, name: &str) -> Result<bool, Failure> {
    Ok(client.get_if_there(&format!("/v1/pools/{}", escaped(name)))?.is_some())
}

/// Returns the daemon's information about a volume.
pub(super) fn volume_info(client: &Client, name: &str) -> Result<Option<VolumeInfo>, Failure> {
    let answer = client.get_if_there(&format!("/v1/volumes/{}", escaped(name)))?;
    answer.map(|answer| client::read(&answer)).transpose()
}

/// As [`volume_info`], but waits while the volume is being attached: the process that requested it
/// may have been killed.
fn settled(client: &Client, name: &str) -> Result<Option<VolumeInfo>, Failure> {
    let until = Instant::now() + OTHERS_WITHIN;
    loop {
        match volume_info(client, name)? {
            Some(now) if now.state == VolumeState::Attaching && Instant::now() < until => {
                std::thread::sleep(LOOK);
            }
            now => return Ok(now),
        }
    }
}

/// Follows a job to its end. After Ctrl-C comes the rollback, so the job is cancelled first.
fn follow(client: &Client, job: &str) -> Result<(), Failure> {
    let Err(failure) = job::follow(client, job, false) else { return Ok(()) };
    let path = format!("/v1/jobs/{}", escaped(job));
    let look = || client.get(&path).ok().and_then(|job| client::read::<Job>(&job).ok());
    if look().is_none_or(|job| job.is_over()) {
        return Err(failure);
    }
    client.delete(&path)?;
    let until = Instant::now() + OTHERS_WITHIN;
    loop {
        match look() {
            Some(job) if job.is_done() => return Ok(()), // the job ended before the cancellation
            Some(job) if !job.is_over() && Instant::now() < until => std::thread::sleep(LOOK),
            _ => return Err(Failure::new(MessageId::CliInterrupted, "interrupted")),
        }
    }
}

fn unmount(mounted: &Mounted) -> Result<(), Failure> {
    let mounts = Mounts::read().map_err(system("cannot read the list of mounts"))?;
    if let Some(mount) = mounts.at(&mounted.point).last() {
        users::refuse_if_used(&mounts, mount)?;
    }
    shell::run(&["umount", text(&mounted.point).unwrap_or_default()])
}

fn edit(change: &Change) -> Result<(), Failure> {
    let path = Path::new(FSTAB);
    let old = fstab::read(path).map_err(system(FSTAB))?;
    if !change.is_made(&old) {
        let new = change.applied(&old).ok_or_else(|| {
            let line = harmless(&change.line());
            Failure::new(
                MessageId::AttachFstab,
                format!("{FSTAB} has changed: the line to change is missing: {line}"),
            )
            .hint("it was edited meanwhile; the same command again reads it again")
        })?;
        fstab::replace(path, &old, &new).map_err(system(FSTAB))?;
    }
    if has_systemd() { shell::run(&["systemctl", "daemon-reload"]) } else { Ok(()) }
}

/// Detaches a volume; waits for a detach already in progress, whose requester was killed.
fn detach(client: &Client, volume: &str) -> Result<(), Failure> {
    let now = volume_info(client, volume)?;
    if let Some(job) = now.and_then(|now| now.job) {
        // Its result shows in the state afterwards.
        let _ = follow(client, &job);
        if volume_info(client, volume)?.is_none() {
            return Ok(());
        }
    }
    let job = client.delete(&format!("/v1/volumes/{}?how=drain", escaped(volume)))?;
    follow(client, &client::read::<Job>(&job)?.id)
}

/// Destages all dirty blocks, and leaves the mode changed. Waits for a drain already in progress,
/// whose requester was killed.
fn drain(client: &Client, volume: &str, mode: &str) -> Result<(), Failure> {
    let now = volume_info(client, volume)?;
    let (job, is_left) = now.map_or((None, false), |now| (now.job, now.mode != mode));
    match job {
        Some(job) => follow(client, &job),
        None if is_left => Step::Flush { volume: volume.into() }.act(client),
        None => set_mode(client, volume, "writethrough", Leaving::Drain),
    }
}

fn set_mode(client: &Client, volume: &str, mode: &str, leaving: Leaving) -> Result<(), Failure> {
    let set = BTreeMap::from([("mode".to_owned(), Some(mode.to_owned()))]);
    let request = SettingsRequest { set, temporary: true, leaving };
    let answer = client.patch(&format!("/v1/volumes/{}/settings", escaped(volume)), &request)?;
    let done: SettingsDone = client::read(&answer)?;
    done.job.map_or(Ok(()), |job| follow(client, &job))
}

/// Cancels the job on a volume.
fn cancel_job(client: &Client, volume: &str) -> Result<(), Failure> {
    let Some(job) = volume_info(client, volume)?.and_then(|now| now.job) else { return Ok(()) };
    client.delete(&format!("/v1/jobs/{}", escaped(&job)))?;
    let until = Instant::now() + OTHERS_WITHIN;
    while volume_info(client, volume)?.is_some_and(|now| now.job.is_some()) && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_admin::DeviceRequest;

    fn mounted(kind: Option<&str>, options: &[&str]) -> Mounted {
        Mounted {
            source: "/dev/sdb".into(),
            point: "/srv/d b".into(),
            kind: kind.map(str::to_owned),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
        }
    }

    fn all() -> Vec<Step> {
        let device = |path: &str, size: Option<&str>| DeviceRequest {
            path: path.into(),
            size: size.map(str::to_owned),
        };
        let settings = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect::<BTreeMap<_, _>>()
        };
        let volume = || "db".to_owned();
        vec![
            Step::LoadDriver,
            Step::AddDropIn { from: "/usr/share/forebay/ublk.conf".into() },
            Step::StartService { enable: true, start: true },
            Step::RestartService,
            Step::CreatePool(PoolRequest {
                name: "fast".into(),
                devices: vec![device("/dev/a", None), device("/f.img", Some("1GiB"))],
                settings: settings(&[("mirror", "on"), ("segment_size", "1MiB")]),
                overwrite: true,
                fill: false,
                new_cache: true,
            }),
            Step::Unmount(mounted(None, &[])),
            Step::Attach(VolumeRequest {
                name: volume(),
                pool: Some("fast".into()),
                backing: "/dev/sdb".into(),
                exports: vec!["ublk:".into()],
                settings: settings(&[("mode", "writethrough")]),
            }),
            Step::Mount(mounted(Some("ext4"), &["ro", "noatime"])),
            Step::Drain { volume: volume(), mode: "writeback".into() },
            Step::Flush { volume: volume() },
            Step::Detach { volume: volume() },
        ]
    }

    #[test]
    fn steps_are_shown_as_they_are_typed() {
        let shown: Vec<String> = all().iter().flat_map(Step::commands).collect();
        assert_eq!(
            shown,
            [
                "modprobe ublk_drv",
                "install -D -m 644 -t /etc/systemd/system/forebay.service.d /usr/share/forebay/ublk.conf",
                "systemctl daemon-reload",
                "systemctl enable --now forebay",
                "systemctl restart forebay",
                "forebay pool create fast --mirror --device /dev/a --device /f.img:1GiB --set segment_size=1MiB --overwrite --new-cache",
                "umount '/srv/d b'",
                "forebay volume attach db --pool fast --backing /dev/sdb --export ublk: --set mode=writethrough",
                "mount -t ext4 -o ro,noatime /dev/sdb '/srv/d b'",
                "forebay set db mode=writethrough --drain --temporary",
                "forebay flush db",
                "forebay volume detach db",
            ]
        );
    }

    #[test]
    fn the_way_back_is_shown_too() {
        let back: Vec<String> =
            all().iter().filter_map(Step::opposite).flat_map(|step| step.commands()).collect();
        assert_eq!(
            back,
            [
                "rm /etc/systemd/system/forebay.service.d/ublk.conf",
                "systemctl daemon-reload",
                "systemctl disable --now forebay",
                "forebay pool remove fast --erase",
                "mount '/srv/d b'",
                "forebay volume detach db",
                "umount '/srv/d b'",
                "forebay set db mode=writeback --temporary",
            ]
        );
        let twice = all().iter().filter_map(Step::opposite).filter_map(|step| step.opposite()).count();
        assert_eq!(twice, 2, "a mount and an unmount");
    }

    #[test]
    fn steps_are_kept_as_they_are() {
        let change = Change::to_volume(
            b"/dev/sdb /srv/\xff ext4\n",
            &fstab::entries(b"/dev/sdb /srv/\xff ext4\n")[0],
            Path::new("/dev/forebay/db"),
        );
        let steps: Vec<Step> = all().into_iter().chain([Step::Edit(change)]).collect();
        let text = serde_json::to_vec(&steps).unwrap();
        assert_eq!(serde_json::from_slice::<Vec<Step>>(&text).unwrap(), steps);
    }
}

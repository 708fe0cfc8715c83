//! The daemon as a systemd service, and its permission to create block devices.
//!
//! The present state determines the steps ([`decide`]). A daemon that serves pools is never
//! restarted here: its NBD clients and files would notice.

use std::path::{Path, PathBuf};

use forebay_admin::{DaemonInfo, MessageId};
use forebay_pool::{MayWait, ublk_found};

use super::shell;
use super::steps::Step;
use crate::failure::Failure;

/// Name of the unit.
pub(super) const UNIT: &str = "forebay";
/// Directory of an administrator's drop-ins.
pub(super) const DROP_IN_FOLDER: &str = "/etc/systemd/system/forebay.service.d";
/// The drop-in that permits the service to create block devices.
pub(super) const DROP_IN: &str = "ublk.conf";
/// Control device of the driver.
pub(super) const DRIVER: &str = "/dev/ublk-control";
/// This path exists if systemd is the machine's service manager (sd_booted(3)).
const SYSTEMD: &str = "/run/systemd/system";
/// The number of `CAP_SYS_ADMIN` (capabilities(7)).
const CAP_SYS_ADMIN: u32 = 21;

/// State of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Service {
    pub(super) is_active: bool,
    pub(super) is_enabled: bool,
}

impl Service {
    /// Returns the present state; `None` without systemd or without such a service.
    pub(super) fn look() -> Option<Self> {
        if !has_systemd() {
            return None;
        }
        let loaded = shell::output(&["systemctl", "show", UNIT, "--property=LoadState"]).ok()?;
        if !loaded.lines().any(|line| line == "LoadState=loaded") {
            return None;
        }
        Some(Self { is_active: is("is-active"), is_enabled: is("is-enabled") })
    }
}

fn is(what: &str) -> bool {
    shell::succeeds(&["systemctl", what, "--quiet", UNIT])
}

/// Returns true if systemd runs the machine.
pub(super) fn has_systemd() -> bool {
    Path::new(SYSTEMD).is_dir()
}

/// A daemon that answers.
#[derive(Clone, Debug)]
pub(super) struct Daemon {
    pid: u32,
    pools: Vec<String>,
    may_make: bool,
}

impl Daemon {
    /// The daemon that returned `info`.
    pub(super) fn new(info: &DaemonInfo) -> Self {
        Self { pid: info.pid, pools: info.pools.clone(), may_make: may_make_devices(info.pid) != Some(false) }
    }

    /// Whether it may create block devices; true if unknown.
    pub(super) fn may_make(&self) -> bool {
        self.may_make
    }
}

/// Returns whether a process has the required capability; `None` for a process that is not visible.
fn may_make_devices(pid: u32) -> Option<bool> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
    Some(mask & (1 << CAP_SYS_ADMIN) != 0)
}

/// Returns the drop-in in the package of this program.
fn packaged_drop_in() -> Option<PathBuf> {
    let own = std::env::current_exe().ok();
    let prefix = own.as_deref().and_then(Path::parent).and_then(Path::parent).map(Path::to_owned);
    let prefixes = prefix.into_iter().chain([PathBuf::from("/usr"), PathBuf::from("/usr/local")]);
    prefixes.map(|prefix| prefix.join("share/forebay").join(DROP_IN)).find(|path| path.is_file())
}

/// Returns the steps after which a daemon runs that may create block devices.
///
/// # Errors
/// The operator must act: the message describes the action and the reason.
pub(super) fn steps(daemon: Option<&Daemon>) -> Result<Vec<Step>, Failure> {
    let mut steps = Vec::new();
    if Path::new(DRIVER).exists() {
        ublk_found::devices(&MayWait::here()).map_err(|why| Failure::new(MessageId::CliSystem, why))?;
    } else if shell::succeeds(&["modprobe", "--dry-run", "--quiet", "ublk_drv"]) {
        steps.push(Step::LoadDriver);
    } else {
        return Err(Failure::new(MessageId::AttachBlockDevices, "this kernel has no ublk (CONFIG_BLK_DEV_UBLK, Linux 6.5 or later)")
            .hint("give a container /dev/ublk-control; without ublk a volume is reached over NBD: forebay help boot"));
    }
    let is_there = Path::new(DROP_IN_FOLDER).join(DROP_IN).exists();
    let drop_in =
        if is_there { DropIn::There } else { packaged_drop_in().map_or(DropIn::Nowhere, DropIn::Packaged) };
    steps.extend(decide(Service::look(), &drop_in, daemon)?);
    Ok(steps)
}

/// Whether the drop-in is installed, and where to get it.
#[derive(Clone, Debug)]
enum DropIn {
    There,
    Packaged(PathBuf),
    Nowhere,
}

fn decide(service: Option<Service>, drop_in: &DropIn, daemon: Option<&Daemon>) -> Result<Vec<Step>, Failure> {
    let to_enable = |service: &Service| {
        (!service.is_enabled).then_some(Step::StartService { enable: true, start: false })
    };
    match (daemon, &service) {
        (Some(daemon), Some(service)) if daemon.may_make => {
            // A daemon started by hand is left to the operator.
            Ok(to_enable(service).filter(|_| service.is_active).into_iter().collect())
        }
        (Some(daemon), None) if daemon.may_make => Ok(Vec::new()),
        (Some(daemon), Some(service)) if service.is_active && daemon.pools.is_empty() => {
            let restart = [Step::RestartService];
            Ok(drop_in.steps()?.into_iter().chain(restart).chain(to_enable(service)).collect())
        }
        (Some(daemon), Some(service)) if service.is_active => {
            let mut commands: Vec<String> = drop_in.steps()?.iter().flat_map(Step::commands).collect();
            commands.extend(Step::RestartService.commands());
            Err(Failure::new(MessageId::AttachBlockDevices, format!(
                "the daemon (process {}) may not make block devices, and a restart would interrupt its clients (pools: {})",
                daemon.pid,
                daemon.pools.join(", ")
            ))
            .hint(format!(
                "restart it when its clients can tolerate that (forebay help restart), then the same command again:\n        {}",
                commands.join("\n        ")
            )))
        }
        (Some(daemon), _) => Err(Failure::new(MessageId::AttachBlockDevices, format!(
            "the daemon (process {}) may not make block devices: it needs CAP_SYS_ADMIN",
            daemon.pid
        ))
        .hint("it was not started by the service forebay: start it as root (forebay serve), then the same command again")),
        (None, Some(service)) => {
            let start = Step::StartService { enable: !service.is_enabled, start: true };
            Ok(drop_in.steps()?.into_iter().chain([start]).collect())
        }
        (None, None) => Err(Failure::new(MessageId::DaemonNoService, "no daemon answers, and systemd has no service forebay here that could be started").hint(
            "start one as root, and also at boot: forebay serve --config /etc/forebay/forebay.toml",
        )),
    }
}

impl DropIn {
    fn steps(&self) -> Result<Vec<Step>, Failure> {
        match self {
            Self::There => Ok(Vec::new()),
            Self::Packaged(from) => Ok(vec![Step::AddDropIn { from: from.clone() }]),
            Self::Nowhere => Err(Failure::new(MessageId::AttachBlockDevices, format!(
                "the service may not make block devices, and the package's share/forebay/{DROP_IN}, which permits it, is missing"
            ))
            .hint(format!("install the package again, or write {DROP_IN_FOLDER}/{DROP_IN} as forebay help boot has it"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(service: Option<(bool, bool)>, drop_in: &DropIn, daemon: Option<(&[&str], bool)>) -> String {
        let service = service.map(|(is_active, is_enabled)| Service { is_active, is_enabled });
        let daemon = daemon.map(|(pools, may_make)| Daemon {
            pid: 7,
            pools: pools.iter().map(|pool| (*pool).to_owned()).collect(),
            may_make,
        });
        match decide(service, drop_in, daemon.as_ref()) {
            Ok(steps) => steps.iter().flat_map(Step::commands).collect::<Vec<_>>().join("; "),
            Err(failure) => format!("{failure:?}"),
        }
    }

    #[test]
    fn services_get_access_and_start_as_needed() {
        let packaged = DropIn::Packaged("/usr/share/forebay/ublk.conf".into());
        let install = "install -D -m 644 -t /etc/systemd/system/forebay.service.d /usr/share/forebay/ublk.conf; \
            systemctl daemon-reload";
        assert_eq!(
            commands(Some((false, false)), &packaged, None),
            format!("{install}; systemctl enable --now forebay")
        );
        assert_eq!(commands(Some((false, true)), &DropIn::There, None), "systemctl start forebay");
        let idle: (&[&str], bool) = (&[], false);
        assert_eq!(
            commands(Some((true, true)), &packaged, Some(idle)),
            format!("{install}; systemctl restart forebay")
        );
        assert_eq!(
            commands(Some((true, false)), &DropIn::There, Some(idle)),
            "systemctl restart forebay; systemctl enable forebay"
        );
    }

    #[test]
    fn a_daemon_that_may_is_left_alone() {
        let serving: (&[&str], bool) = (&["fast"], true);
        for service in [None, Some((true, true)), Some((false, false))] {
            assert_eq!(commands(service, &DropIn::Nowhere, Some(serving)), "");
        }
        assert_eq!(
            commands(Some((true, false)), &DropIn::Nowhere, Some(serving)),
            "systemctl enable forebay"
        );
    }

    #[test]
    fn disruptive_service_changes_are_hints() {
        let packaged = DropIn::Packaged("/p/ublk.conf".into());
        let serving: (&[&str], bool) = (&["fast", "slow"], false);
        let said = commands(Some((true, true)), &packaged, Some(serving));
        for part in ["process 7", "fast, slow", "install -D", "/p/ublk.conf", "systemctl restart forebay"] {
            assert!(said.contains(part), "{part} is not in {said}");
        }
        assert!(commands(None, &packaged, Some(serving)).contains("start it as root"));
        assert!(commands(None, &packaged, None).contains("forebay serve --config"));
        assert!(commands(Some((false, false)), &DropIn::Nowhere, None).contains("forebay help boot"));
    }

    #[test]
    fn capabilities_are_those_of_the_process() {
        let of_this = may_make_devices(std::process::id());
        assert!(of_this.is_some());
        assert_eq!(may_make_devices(u32::MAX), None);
    }
}

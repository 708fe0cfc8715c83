//! Existing block devices, whichever process created them: to list them, and to remove those that
//! no daemon will serve again.
//!
//! Only devices with the mark of Forebay are listed here, of any volume. A served device is not
//! removed: the operator has to detach its volume.

use std::path::{Path, PathBuf};

use forebay_export::uri::device_name_problem;
use forebay_io::ublk::{Control, DeviceInfo, State};
use thiserror::Error;

use crate::frontends::Users;
use crate::may_wait::MayWait;
use crate::ublk_device::{FOLDER, UblkDevice, is_ours, number_of};

/// An existing device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDevice {
    /// The N of `/dev/ublkbN`.
    pub number: u32,
    /// Its name below [`FOLDER`], if it has one.
    pub name: Option<String>,
    /// Its state.
    pub state: State,
    /// Its server process.
    pub server_pid: Option<i32>,
}

impl FoundDevice {
    fn new(info: &DeviceInfo) -> Self {
        let name = name_of(info.number);
        let server_pid = Some(info.server_pid).filter(|pid| *pid > 0 && info.state == State::Live);
        Self { number: info.number, name, state: info.state, server_pid }
    }

    /// Describes its state.
    #[must_use]
    pub fn words(&self) -> String {
        match (self.state, self.server_pid) {
            (State::Live, Some(pid)) => format!("served by process {pid}"),
            (State::Live, None) => "its server is ending".into(),
            (State::Quiesced, _) => "waits for its daemon".into(),
            (State::Failing, _) => "without a server: requests fail".into(),
            (State::Dead, _) => "not started".into(),
        }
    }
}

/// Reason why a device is not removed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotRemoved {
    /// There is no such device.
    #[error("Forebay has no block device {0}")]
    Unknown(String),
    /// A daemon serves it.
    #[error("{path} is served by process {pid}")]
    Served {
        /// The device.
        path: PathBuf,
        /// Its server.
        pid: i32,
    },
    /// It is in use.
    #[error("it is in use: {0}")]
    Used(String),
    /// The driver refused: a message.
    #[error("{0}")]
    Failed(String),
}

/// The name of a device below [`FOLDER`], if it has one. Reads only the file system.
#[must_use]
pub fn name_of(number: u32) -> Option<String> {
    let is_it = |path: &Path| std::fs::read_link(path).ok().as_deref().and_then(number_of) == Some(number);
    let links = std::fs::read_dir(FOLDER).into_iter().flatten().flatten();
    let names =
        links.filter(|link| is_it(&link.path())).filter_map(|link| link.file_name().into_string().ok());
    names.filter(|name| device_name_problem(name).is_none()).min()
}

/// The name of the device at a path such as `/dev/ublkb0`, if it has one.
#[must_use]
pub fn name_at(path: &Path) -> Option<String> {
    name_of(number_of(path)?)
}

/// All devices that Forebay has created.
///
/// # Errors
/// There is no ublk here: a message.
pub fn devices(_: &MayWait) -> Result<Vec<FoundDevice>, String> {
    let mut control = Control::open().map_err(|error| error.to_string())?;
    let all = control.devices().map_err(|error| error.to_string())?;
    Ok(all.iter().filter(|info| is_ours(info.mark)).map(FoundDevice::new).collect())
}

/// Removes a device without a server: `name` is one below [`FOLDER`], or a path. A device in use is
/// removed with `force` only.
///
/// # Errors
/// [`NotRemoved`].
pub fn remove(may_wait: &MayWait, name: &str, force: bool) -> Result<FoundDevice, NotRemoved> {
    let path = Path::new(FOLDER).join(name); // an absolute path is unchanged
    let leads_to = std::fs::read_link(&path).unwrap_or_else(|_| path.clone());
    let all = devices(may_wait).map_err(NotRemoved::Failed)?;
    let found = number_of(&leads_to).and_then(|number| all.into_iter().find(|found| found.number == number));
    let found = found.ok_or_else(|| NotRemoved::Unknown(path.display().to_string()))?;
    if let Some(pid) = found.server_pid {
        return Err(NotRemoved::Served { path, pid });
    }
    let name = found.name.clone().unwrap_or_default();
    let device = UblkDevice::without_server(found.number, name);
    let claims = match Users::of_devices(may_wait, std::slice::from_ref(&device)) {
        Ok(claims) => claims,
        Err(_) if force => Vec::new(),
        Err(users) => return Err(NotRemoved::Used(users.to_string())),
    };
    let claim = claims.into_iter().next().map(|(_, claim)| claim);
    device.remove(may_wait, claim).map_err(NotRemoved::Failed)?;
    Ok(found)
}

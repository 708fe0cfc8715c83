//! Commands to the ublk driver that create, start, find, change and remove devices.
//!
//! Most commands block: on a thread that serves the device, or on other users. So they are for
//! threads that may block; a pool's thread, which serves the device, issues none.
//!
//! Invariants
//! - A command that takes longer than [`COMMAND_TIMEOUT`] counts as failed, and its ring accepts no
//!   more commands. Its memory is leaked.
//! - Only a caller that knows a device's number takes over, stops or removes it; [`Control::find`]
//!   finds the number by the mark that the device was created with.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use super::error::{CONTROL, UblkError};
use super::wire::{DeviceInfo, FEATURES_BYTES, INFO_BYTES, State, control, feature, op, params, sectors};

/// Longest wait for a command.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// Where the kernel lists the devices.
const DEVICES: &str = "/sys/class/ublk-char";

/// Parameters of a new device.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Size; a partial logical block at the end is left out.
    pub size_bytes: u64,
    /// Logical block size: 512 or 4096.
    pub block_bytes: u32,
    /// Most requests in flight.
    pub depth: u16,
    /// Longest request with a payload.
    pub payload_bytes_max: u32,
    /// Distinguishes the device from all others; the kernel keeps it as long as the device exists.
    pub mark: u64,
}

/// The driver, for one thread that may block.
pub struct Control {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    file: File,
    features: u64,
    /// A command timed out.
    is_stuck: bool,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("features", &self.features).finish_non_exhaustive()
    }
}

impl Control {
    /// Opens the driver.
    ///
    /// # Errors
    /// [`UblkError`]: it is missing, does not permit this process, or is too old.
    pub fn open() -> Result<Self, UblkError> {
        let file = OpenOptions::new().read(true).write(true).open(CONTROL).map_err(|source| match source
            .raw_os_error()
        {
            Some(libc::EPERM | libc::EACCES) => UblkError::of(format!("open {CONTROL}"), source),
            _ => UblkError::NoDriver { source },
        })?;
        let ring = IoUring::builder().build(2).map_err(|source| UblkError::NoRing { source })?;
        let mut control = Self { ring, file, features: 0, is_stuck: false };
        control.features = control.ask_features()?;
        let needs = |bit, what, since| match control.features & bit {
            0 => Err(UblkError::TooOld { what, since }),
            _ => Ok(()),
        };
        needs(feature::USER_COPY, "leave payloads to the server (UBLK_F_USER_COPY)", "6.5")?;
        needs(feature::RECOVERY, "keep a device whose server died (UBLK_F_USER_RECOVERY)", "6.1")?;
        needs(feature::REISSUE, "reissue requests that a dead server had not answered", "6.1")?;
        Ok(control)
    }

    /// Queries the features; kernels before 6.5 do not support the query.
    fn ask_features(&mut self) -> Result<u64, UblkError> {
        let asked = self.give(op::GET_FEATURES, "report its features", u32::MAX, vec![0; FEATURES_BYTES], 0);
        match asked {
            Ok(bytes) => Ok(bytes.try_into().map_or(0, u64::from_ne_bytes)),
            Err(error) if matches!(error.errno(), Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENODEV)) => {
                Err(UblkError::TooOld {
                    what: "leave payloads to the server (UBLK_F_USER_COPY)",
                    since: "6.5",
                })
            }
            Err(error) => Err(error),
        }
    }

    /// Returns whether devices created now can change their size (Linux 6.16).
    pub fn can_resize(&self) -> bool {
        self.features & feature::UPDATE_SIZE != 0
    }

    /// Creates a device. Its block device appears only after [`Control::start`].
    ///
    /// # Errors
    /// [`UblkError`].
    pub fn add(&mut self, wanted: &Wanted) -> Result<DeviceInfo, UblkError> {
        let flags = feature::RECOVERY | feature::REISSUE | feature::USER_COPY | feature::UPDATE_SIZE;
        let asked = DeviceInfo {
            number: u32::MAX, // any free number
            queues: 1,
            depth: wanted.depth,
            state: State::Dead,
            payload_bytes_max: wanted.payload_bytes_max,
            server_pid: -1,
            features: flags & self.features,
            mark: wanted.mark,
        };
        let what = "create a device";
        let told = self.give(op::ADD, what, u32::MAX, asked.encode().to_vec(), 0)?;
        let info = DeviceInfo::decode(&told).ok_or_else(|| not_understood(what))?;
        let bytes = params(wanted.size_bytes, wanted.block_bytes, info.payload_bytes_max);
        let what = format!("set the parameters of ublkb{}", info.number);
        if let Err(error) = self.give(op::SET_PARAMS, &what, info.number, bytes.to_vec(), 0) {
            let _ = self.delete(info.number);
            return Err(error);
        }
        Ok(info)
    }

    /// Starts a device: the block device appears. Waits until the server has a fetch for each tag.
    ///
    /// # Errors
    /// [`UblkError`].
    pub fn start(&mut self, number: u32) -> Result<(), UblkError> {
        self.plain(op::START, &format!("start ublkb{number}"), number, process())
    }

    /// Stops a device: the block device disappears, requests in flight are waited for, and
    /// processes that have it open get errors.
    ///
    /// # Errors
    /// [`UblkError`].
    pub fn stop(&mut self, number: u32) -> Result<(), UblkError> {
        self.plain(op::STOP, &format!("stop ublkb{number}"), number, 0)
    }

    /// Removes a device, and waits until all processes that have it open close it.
    ///
    /// # Errors
    /// [`UblkError`].
    pub fn delete(&mut self, number: u32) -> Result<(), UblkError> {
        self.plain(op::DELETE, &format!("remove ublkb{number}"), number, 0)
    }

    /// Like [`Control::delete`], but does not wait for processes that have the device open: the
    /// kernel removes it when they close it. Before Linux 6.9 it waits.
    ///
    /// # Errors
    /// [`UblkError`].
    pub fn delete_under_users(&mut self, number: u32) -> Result<(), UblkError> {
        let deleted = self.plain(op::DELETE_ASYNC, &format!("remove ublkb{number}"), number, 0);
        match deleted {
            Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => self.delete(number),
            deleted => deleted,
        }
    }

    /// Changes the size of a started device.
    ///
    /// # Errors
    /// [`UblkError`].
    pub fn set_size(&mut self, number: u32, size_bytes: u64, block_bytes: u32) -> Result<(), UblkError> {
        if !self.can_resize() {
            return Err(UblkError::TooOld { what: "change the size of a device", since: "6.16" });
        }
        let sectors = sectors(size_bytes, block_bytes);
        self.plain(op::UPDATE_SIZE, &format!("resize ublkb{number}"), number, sectors)
    }

    /// Starts the takeover of a device whose server is gone. Returns `EBUSY` until the kernel has
    /// cleaned up after the old server.
    ///
    /// # Errors
    /// [`UblkError`].
    pub fn start_recovery(&mut self, number: u32) -> Result<(), UblkError> {
        self.plain(op::START_RECOVERY, &format!("take over ublkb{number}"), number, 0)
    }

    /// Completes the takeover: the device delivers requests again, unanswered ones first. Waits
    /// until the server has a fetch for each tag.
    ///
    /// # Errors
    /// [`UblkError`].
    pub fn end_recovery(&mut self, number: u32) -> Result<(), UblkError> {
        self.plain(op::END_RECOVERY, &format!("take over ublkb{number}"), number, process())
    }

    /// The driver's information about a device; `None` if no device has this number, or an
    /// unprivileged server created it.
    ///
    /// # Errors
    /// [`UblkError`].
    pub fn info(&mut self, number: u32) -> Result<Option<DeviceInfo>, UblkError> {
        let what = format!("report the state of ublkb{number}");
        match self.give(op::GET_INFO, &what, number, vec![0; INFO_BYTES], 0) {
            Ok(bytes) => Ok(DeviceInfo::decode(&bytes)),
            Err(error) if matches!(error.errno(), Some(libc::ENODEV | libc::EINVAL)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The device that was created with a mark.
    ///
    /// # Errors
    /// [`UblkError`].
    pub fn find(&mut self, mark: u64) -> Result<Option<DeviceInfo>, UblkError> {
        Ok(self.devices()?.into_iter().find(|info| info.mark == mark))
    }

    /// All devices of privileged servers.
    ///
    /// # Errors
    /// [`UblkError`].
    pub fn devices(&mut self) -> Result<Vec<DeviceInfo>, UblkError> {
        numbers().into_iter().filter_map(|number| self.info(number).transpose()).collect()
    }

    fn plain(&mut self, op: u32, what: &str, number: u32, data: u64) -> Result<(), UblkError> {
        self.give(op, what, number, Vec::new(), data).map(drop)
    }

    /// Issues a command and waits for its end; returns the memory with the kernel's output.
    fn give(
        &mut self,
        op: u32,
        what: &str,
        number: u32,
        mut memory: Vec<u8>,
        data: u64,
    ) -> Result<Vec<u8>, UblkError> {
        let late = || UblkError::Late { what: what.to_owned(), seconds: COMMAND_TIMEOUT.as_secs() };
        if self.is_stuck {
            return Err(late());
        }
        let buffer =
            if memory.is_empty() { (0, 0) } else { (memory.as_mut_ptr() as u64, memory.len() as u16) };
        let command = control(number, buffer, data);
        let entry = opcode::UringCmd80::new(Fd(self.file.as_raw_fd()), op).cmd(command).build();
        // SAFETY: the memory lives until the command has ended, or forever.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|_| late())?; // the queue is empty before each command
        match self.wait() {
            Ok(Some(result)) if result >= 0 => Ok(memory),
            Ok(Some(result)) => Err(UblkError::of(what, io::Error::from_raw_os_error(result.wrapping_neg()))),
            ended => {
                self.is_stuck = true;
                std::mem::forget(memory); // the kernel may still write to it
                Err(ended.err().map_or_else(late, |source| UblkError::NoRing { source }))
            }
        }
    }

    /// Returns the result of the command; `None` on timeout.
    fn wait(&mut self) -> io::Result<Option<i32>> {
        let until = Instant::now() + COMMAND_TIMEOUT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let time = Timespec::new().sec(left.as_secs()).nsec(left.subsec_nanos());
            let submitted = self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time));
            if let Some(event) = self.ring.completion().next() {
                return Ok(Some(event.result()));
            }
            match submitted.map_err(|error| (error.raw_os_error(), error)) {
                Ok(_) | Err((Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ETIME), _)) => {}
                Err((_, error)) => return Err(error),
            }
            if left.is_zero() {
                return Ok(None);
            }
        }
    }
}

fn not_understood(what: &str) -> UblkError {
    UblkError::of(what, io::Error::from(io::ErrorKind::InvalidData))
}

fn process() -> u64 {
    u64::from(std::process::id())
}

/// Numbers of all devices.
fn numbers() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir(DEVICES) else { return Vec::new() };
    let number = |entry: io::Result<std::fs::DirEntry>| {
        entry.ok()?.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok()
    };
    let mut numbers: Vec<u32> = entries.filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

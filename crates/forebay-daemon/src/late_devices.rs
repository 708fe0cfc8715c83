//! How long devices may take to appear while the machine starts.
//!
//! Nothing says which devices will still come. For so long a start counts on it: a mirrored cache
//! is not opened with one device yet, and the service manager is not told yet that the daemon
//! serves. What is there is served meanwhile. A daemon that is started later meets devices that
//! have come or will not, and waits for none.

use std::time::Duration;

/// A start waits for devices so long. As mdadm does before it starts an array that lacks a device
/// (mdadm-last-resort@.timer).
const PATIENCE: Duration = Duration::from_secs(30);
/// A machine that has been up for longer has found its devices.
const MACHINE_STARTS_FOR: Duration = Duration::from_secs(300);

/// How long this start waits for devices.
pub(crate) fn patience() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    patience_after(Duration::from_secs(u64::try_from(now.tv_sec).unwrap_or(u64::MAX)))
}

fn patience_after(up: Duration) -> Duration {
    if up < MACHINE_STARTS_FOR { PATIENCE } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_machine_that_starts_is_waited_for() {
        assert_eq!(patience_after(Duration::from_secs(3)), PATIENCE);
        assert_eq!(patience_after(MACHINE_STARTS_FOR), Duration::ZERO);
    }
}

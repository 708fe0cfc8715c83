//! How long devices may take to appear while the machine boots.
//!
//! It is unknown which devices will still appear. A start waits for them for a limited time: it
//! does not open a mirrored cache with one device yet, and does not notify the service manager of
//! readiness. Pools and volumes with present devices are served meanwhile. When a daemon starts
//! later, missing devices will probably not appear, and it waits for none.

use std::time::Duration;

/// Time that a start waits for devices. As mdadm does before it starts an array that lacks a device
/// (mdadm-last-resort@.timer).
const PATIENCE: Duration = Duration::from_secs(30);
/// A machine that has been up for longer has found its devices.
const MACHINE_STARTS_FOR: Duration = Duration::from_secs(300);

/// Returns how long this start waits for devices.
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
    fn patience_ends_with_the_boot() {
        assert_eq!(patience_after(Duration::from_secs(3)), PATIENCE);
        assert_eq!(patience_after(MACHINE_STARTS_FOR), Duration::ZERO);
    }
}

//! Waits until no client uses a volume.

use super::pool_query::ask;
use forebay_admin::AdminError;
use forebay_pool::{ExclusiveOpens, MayWait, PoolHandle, Users};
use std::time::{Duration, Instant};

/// Time limit for the users of a volume to disconnect, and the polling interval.
const GOING_WITHIN: Duration = Duration::from_secs(1);
const GOING_LOOK: Duration = Duration::from_millis(20);

/// Waits briefly for clients that are about to disconnect: when a client closes its connection
/// or file, the daemon learns of it a moment later.
///
/// While the returned claims exist, the volume's block devices cannot be mounted.
///
/// # Errors
/// The clients that still use the volume.
pub(super) fn await_unused(handle: &PoolHandle, volume: &str) -> Result<ExclusiveOpens, Users> {
    let until = Instant::now() + GOING_WITHIN;
    loop {
        let name = volume.to_owned();
        // A pool that does not answer reports that when it receives the change itself.
        let asked = ask(handle, move |pool| (pool.users(&name), pool.block_devices(&name)));
        let (mut users, devices) = asked.unwrap_or_default();
        if users.is_empty() {
            match Users::of_devices(&MayWait::here(), &devices) {
                Ok(claims) => return Ok(claims),
                Err(of_devices) => users = of_devices,
            }
        }
        if Instant::now() >= until {
            return Err(users);
        }
        std::thread::sleep(GOING_LOOK);
    }
}

/// Waits until no client uses a volume of a pool. While the returned claims exist, nothing can
/// open its block devices.
pub(super) fn await_all_unused(handle: &PoolHandle) -> Result<ExclusiveOpens, AdminError> {
    let mut claims = ExclusiveOpens::new();
    for volume in ask(handle, |pool| pool.names())? {
        let unused = await_unused(handle, &volume);
        claims.extend(unused.map_err(|users| users.refuse("export", &volume))?);
    }
    Ok(claims)
}

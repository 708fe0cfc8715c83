//! Checks whether further devices can join a cache, before anything is written for it: creating a
//! pool on several devices succeeds completely or not at all.

use super::create::Making;
use super::open_joining;
use crate::cache_device::{is_same, remove_made};
use crate::error::RunError;
use crate::may_wait::MayWait;
use forebay_admin::MessageId;
use forebay_config::CacheSpec;
use forebay_format::member::MemberHeader;
use forebay_format::{CacheUuid, Geometry, Members};
use forebay_io::Device;
use std::path::PathBuf;

/// Checks the devices that will join a new cache.
///
/// # Errors
/// As [`check`].
pub(super) fn check_new(
    first: &CacheSpec,
    others: &[CacheSpec],
    geometry: &Geometry,
    making: Making<'_>,
) -> Result<(), RunError> {
    check(first, others, geometry, &Members::default(), making)
}

/// Checks that all of these devices can join a cache of this geometry, if an operator has just
/// ordered that. All are held open at once. Missing files are created, and removed.
///
/// # Errors
/// One of them cannot. Nothing was written to a device.
pub(super) fn check(
    first: &CacheSpec,
    others: &[CacheSpec],
    geometry: &Geometry,
    members: &Members,
    making: Making<'_>,
) -> Result<(), RunError> {
    if !making.is_asked_for() {
        return Ok(());
    }
    let mut made = Vec::new();
    let held = hold(first, others, (geometry, members), making, &mut made);
    made.iter().for_each(|path| remove_made(path));
    held.map(drop)
}

fn hold(
    first: &CacheSpec,
    others: &[CacheSpec],
    (geometry, members): (&Geometry, &Members),
    making: Making<'_>,
    made: &mut Vec<PathBuf>,
) -> Result<Vec<Device>, RunError> {
    let Some(permit) = making.permit else { return Ok(Vec::new()) };
    let (mut held, mut tags) = (Vec::new(), members.tags().to_vec());
    for (at, spec) in others.iter().enumerate() {
        let before = [first].into_iter().chain(&others[..at]);
        let same = |other: &&CacheSpec| other.path == spec.path || is_same(&other.path, &spec.path);
        if let Some(other) = before.into_iter().find(same) {
            let what = format!("{} and {} are the same device", other.path.display(), spec.path.display());
            return Err(RunError::failed(MessageId::DeviceTwice, what, "give each device once"));
        }
        let existed = spec.path.exists();
        let device = open_joining(&MayWait::here(), spec, permit)?;
        if !existed {
            made.push(spec.path.clone());
        }
        let unfit = |why: String| {
            let what = format!("{} cannot be a device of the pool: {why}", spec.path.display());
            RunError::failed(MessageId::DeviceTooSmall, what, "give a larger one, or fewer devices")
        };
        let members = Members::new(&tags).ok_or_else(|| unfit("the cache has too many devices".into()))?;
        MemberHeader::joining(CacheUuid([0; 16]), geometry, &members, 1, device.size_bytes())
            .map_err(|error| unfit(error.to_string()))?;
        tags.push(at as u64 + 1);
        held.push(device);
    }
    Ok(held)
}

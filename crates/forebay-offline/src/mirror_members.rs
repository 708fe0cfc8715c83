//! The two devices of a mirrored cache: whether they belong together, and which of them count.
//!
//! This module judges by their superblocks. A device that was failed out may be recorded only in
//! the notes of the daemon. Callers that have the notes check them first.

use crate::Refusal;
use forebay_admin::MessageId;
use forebay_format::MirrorMark;
use forebay_format::superblock::Superblock;
use forebay_io::Device;

/// A device with a superblock of a mirrored cache.
#[derive(Debug)]
pub struct MirrorMember {
    /// The device.
    pub device: Device,
    /// Its superblock.
    pub superblock: Superblock,
    mark: MirrorMark,
}

impl MirrorMember {
    /// Creates a member from a device with this superblock; `None` if its cache is not mirrored.
    #[must_use]
    pub fn new(device: Device, superblock: Superblock) -> Option<Self> {
        superblock.mirror.map(|mark| Self { device, superblock, mark })
    }

    /// Returns its number: 0 or 1.
    #[must_use]
    pub fn member(&self) -> u8 {
        self.mark.member
    }

    /// Returns the tag drawn when it joined.
    #[must_use]
    pub fn tag(&self) -> u64 {
        self.mark.tags[usize::from(self.mark.member)]
    }

    /// Returns true if its superblock records this other device as out.
    fn went_on_without(&self, other: &Self) -> bool {
        self.mark.out == Some(other.member()) && self.knows(other)
    }

    fn knows(&self, other: &Self) -> bool {
        self.mark.tags[usize::from(other.member())] == other.tag()
    }
}

/// Checks that two devices are the two of one cache.
///
/// # Errors
/// Refuses if they are of different caches, or the same member.
pub fn check_both(one: &MirrorMember, other: &MirrorMember) -> Result<(), Refusal> {
    let (a, b) = (one.device.path().display(), other.device.path().display());
    if one.superblock.uuid != other.superblock.uuid {
        let what =
            format!("{a} belongs to the cache {}, {b} to {}", one.superblock.uuid, other.superblock.uuid);
        return Err(
            Refusal::new(MessageId::CacheMemberForeign, what).hint("give the two devices of one cache")
        );
    }
    if one.member() == other.member() {
        let member = one.member() + 1;
        return Err(Refusal::new(
            MessageId::CacheMemberTwice,
            format!("{a} and {b} both claim to be device {member} of the mirrored cache"),
        )
        .hint("one of them is a copy, or was replaced: leave it out"));
    }
    Ok(())
}

/// Returns the tag of the device that no longer counts. It is the older one, if the other one
/// records it as out, does not know it, or has continued without it for longer than a crash
/// explains: the same rule as in the engine (I65).
///
/// # Errors
/// Refuses if each has continued without the other one.
pub fn stale_tag(one: &MirrorMember, other: &MirrorMember) -> Result<Option<u64>, Refusal> {
    let generation = |found: &MirrorMember| found.superblock.generation;
    let (newer, older) = if generation(one) >= generation(other) { (one, other) } else { (other, one) };
    let apart = generation(newer) - generation(older);
    let says = |found: &MirrorMember| (found.mark.out, found.mark.tags);
    if older.went_on_without(newer) || apart == 0 && says(newer) != says(older) {
        let (a, b) = (newer.device.path().display(), older.device.path().display());
        return Err(Refusal::new(MessageId::CacheMembersDiverged, format!(
            "{a} and {b}, the devices of a mirrored cache, do not show which of them is current: one continued without the other"
        ))
        .hint(
            "give the one that was used last, with the notes in state_dir/mirrors; to extract the data of \
             one of them, give it alone: forebay salvage",
        ));
    }
    Ok((newer.went_on_without(older) || !newer.knows(older) || apart > 1).then_some(older.tag()))
}

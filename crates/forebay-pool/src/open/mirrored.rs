//! Opening the two devices of a mirrored cache, or creating one on them.
//!
//! - If the notes (`mirror_notes`) cannot be read the pool is not opened: it is unknown which
//!   device is current.
//! - If there are no notes, and only one device, the pool is not opened either: the note could have
//!   been on a lost disk. Two devices show by themselves which of them is current.
//! - A device that another process has open has not failed: the pool is not opened.
//!
//! An empty device in place of one that is out is filled at once: an interrupted rebuild restarts
//! this way.

use super::create::{Making, create_file, mirrored_geometry};
use super::new_cache::NewCache;
use super::parts::PoolParts;
use crate::cache_device::{
    begin_on, device_error, is_cache, is_cut_off, is_same, new_params, new_tag, remove_made, same_device,
};
use crate::error::RunError;
use crate::failed_mark;
use crate::loss_record::hex;
use crate::may_wait::MayWait;
use crate::members::MemberMap;
use crate::mirror_notes::Notes;
use forebay_admin::MessageId;
use forebay_admin::size::ByteSize;
use forebay_config::CacheSpec;
use forebay_core::{MirrorDevices, format_mirrored};
use forebay_format::superblock::Superblock;
use forebay_format::{CacheUuid, Geometry};
use forebay_io::{Device, DeviceError, DeviceOptions};
use forebay_offline::device::{Found, look, wait_for};
use forebay_offline::mirror_members::{MirrorMember, check_both, stale_tag};
use std::path::{Path, PathBuf};

/// Content at the place of a device.
enum Place {
    /// Nothing yet: the file has to be created.
    ToMake,
    Empty(Device),
    /// A file that was being created, or a device that was being filled, when a daemon was killed.
    Begun(Device),
    Member(Box<MirrorMember>),
    /// Nothing usable, and the reason.
    Unfit(String),
}

/// Opens the two devices of a mirrored cache, or creates one on them if both are empty.
///
/// # Errors
/// There are not two devices, neither can be used, they do not belong together, or notes cannot be
/// written or read. Nothing on them was changed.
pub(crate) fn open_mirrored(
    specs: &[CacheSpec],
    making: Making,
    state_dir: &Path,
) -> Result<PoolParts, RunError> {
    let [a, b] = specs else {
        return Err(RunError::failed(
            MessageId::PoolDeviceCount,
            format!("a mirrored cache needs two devices, not {}", specs.len()),
            "give two of the same size, or leave the cache unmirrored (mirror=off)",
        ));
    };
    if is_same(&a.path, &b.path) {
        return Err(same_device(&a.path, &b.path));
    }
    match (place_of(a)?, place_of(b)?) {
        (
            x @ (Place::ToMake | Place::Empty(_) | Place::Begun(_)),
            y @ (Place::ToMake | Place::Empty(_) | Place::Begun(_)),
        ) => {
            making.check_make(specs)?;
            make([(a, x), (b, y)], making, state_dir)
        }
        (Place::Member(one), Place::Member(other)) => {
            let newest = if one.superblock.generation >= other.superblock.generation { &one } else { &other };
            let known = making.check_open(&newest.superblock, specs)?;
            Ok(PoolParts { known, ..use_both(*one, *other, state_dir)? })
        }
        (Place::Member(found), other) => alone(*found, (b, other), specs, making, state_dir),
        (other, Place::Member(found)) => alone(*found, (a, other), specs, making, state_dir),
        (Place::Unfit(why), _) | (_, Place::Unfit(why)) => Err(RunError::failed(
            MessageId::CacheMemberStale,
            format!("no device of the mirrored cache can be used: {why}"),
            "give both devices of a cache, or two that are empty",
        )),
    }
}

fn place_of(spec: &CacheSpec) -> Result<Place, RunError> {
    let path = &spec.path;
    if !path.exists() || is_cut_off(spec) {
        return Ok(match spec.size_bytes {
            Some(_) => Place::ToMake,
            None => Place::Unfit(format!("{} is missing", path.display())),
        });
    }
    let device = match wait_for(|| Device::open_cache(path, DeviceOptions::default())) {
        Ok(device) => device,
        Err(error @ DeviceError::InUse { .. }) => return Err(device_error(error)),
        Err(error) => return Ok(Place::Unfit(format!("{} cannot be opened: {error}", path.display()))),
    };
    Ok(match look(&device) {
        Found::Blank => Place::Empty(device),
        Found::Begun => Place::Begun(device),
        Found::Foreign(why) => Place::Unfit(format!("{} cannot be used as a cache: {why}", path.display())),
        Found::Cache(superblock) => {
            failed_mark::check(&superblock, path)?;
            let member = MirrorMember::new(device, *superblock);
            Place::Member(Box::new(member.ok_or_else(|| is_cache(path, "a cache that is not mirrored"))?))
        }
    })
}

/// Only one device belongs to a mirrored cache. Being out is reported before being older.
fn alone(
    found: MirrorMember,
    other: (&CacheSpec, Place),
    specs: &[CacheSpec],
    making: Making<'_>,
    state_dir: &Path,
) -> Result<PoolParts, RunError> {
    let superblock = found.superblock.clone();
    let parts = use_one(found, other, state_dir)?;
    Ok(PoolParts { known: making.check_open(&superblock, specs)?, ..parts })
}

/// Both devices belong to a mirrored cache.
fn use_both(one: MirrorMember, other: MirrorMember, state_dir: &Path) -> Result<PoolParts, RunError> {
    check_both(&one, &other)?;
    let notes = notes_of_both(&one, &other, state_dir)?;
    let parts = match (notes.lists(one.tag()), notes.lists(other.tag())) {
        (false, false) => assemble([Some(one), Some(other)], Vec::new()),
        (true, false) => assemble([None, Some(other)], vec![stale(&one)]),
        (false, true) => assemble([Some(one), None], vec![stale(&other)]),
        (true, true) => Err(none_left(&format!("{}; {}", stale(&one), stale(&other)))),
    };
    Ok(PoolParts { mirror_notes: Some(notes), ..parts? })
}

/// The notes of a cache with both devices present. Tags that the devices record and the notes lack
/// are noted before either is opened: the notes can be lost, or older than the devices, and the
/// next start can find only the stale device.
fn notes_of_both(one: &MirrorMember, other: &MirrorMember, state_dir: &Path) -> Result<Notes, RunError> {
    let uuid = one.superblock.uuid;
    let notes = Notes::read(state_dir, &hex(&uuid.0))?;
    if let Some(notes) = notes.as_ref().filter(|notes| notes.lists(one.tag()) || notes.lists(other.tag())) {
        return Ok(notes.clone());
    }
    let told = stale_tag(one, other)?;
    match notes {
        Some(notes) if told.is_none() => Ok(notes),
        notes => {
            let notes = notes.unwrap_or_else(|| Notes::new(uuid));
            notes.begin(state_dir, told.as_slice())
        }
    }
}

/// Only one device belongs to a mirrored cache.
fn use_one(
    found: MirrorMember,
    (spec, place): (&CacheSpec, Place),
    state_dir: &Path,
) -> Result<PoolParts, RunError> {
    let uuid = found.superblock.uuid;
    let missing = match &place {
        Place::ToMake if !spec.path.exists() => format!("{} is missing", spec.path.display()),
        Place::Unfit(why) => why.clone(),
        Place::ToMake | Place::Empty(_) | Place::Begun(_) | Place::Member(_) => {
            format!("{} is empty", spec.path.display())
        }
    };
    let Some(notes) = Notes::read(state_dir, &hex(&uuid.0))? else {
        return Err(RunError::failed(
            MessageId::StateUnreadable,
            format!(
                "{missing}, and without {} it is unknown whether {} is the current device",
                Notes::path(state_dir, &hex(&uuid.0)).display(),
                found.device.path().display()
            ),
            "give both devices, or restore that file; to extract the dirty data: forebay salvage",
        ));
    };
    if notes.lists(found.tag()) {
        return Err(none_left(&format!("{}; {missing}", stale(&found))));
    }
    let bytes = found.superblock.geometry.member_bytes();
    let mut parts = assemble([Some(found), None], vec![missing])?;
    parts.mirror_notes = Some(notes);
    if let Place::Empty(device) | Place::Begun(device) = place {
        if device.size_bytes() >= bytes {
            match begin_on(&MayWait::here(), &device) {
                Ok(()) => parts.fresh = Some(device),
                Err(error) => parts.notes.push(error.to_string()),
            }
        } else {
            parts.notes.push(format!(
                "the empty device is too small to replace a member: less than {}",
                ByteSize(bytes)
            ));
        }
    }
    Ok(parts)
}

fn none_left(why: &str) -> RunError {
    RunError::failed(
        MessageId::CacheMemberStale,
        format!("no device of the mirrored cache can be used: {why}"),
        "bring back the device that was used last: its data is newer than the data here",
    )
}

fn stale(member: &MirrorMember) -> String {
    format!(
        "{} was failed out before: the other device continued without it, so it is stale and not used",
        member.device.path().display()
    )
}

/// The current devices, in the order of the members.
fn assemble(members: [Option<MirrorMember>; 2], mut notes: Vec<String>) -> Result<PoolParts, RunError> {
    let (mut devices, mut places, mut newest) = (Vec::new(), [None; 2], None::<Superblock>);
    for found in members.into_iter().flatten() {
        let member = found.member();
        let MirrorMember { device, superblock, .. } = found;
        let end = superblock.geometry.member_bytes();
        if device.size_bytes() < end {
            notes.push(format!("{} is shorter than its cache: it is not used", device.path().display()));
            continue;
        }
        places[usize::from(member)] = Some(devices.len());
        notes.extend(device.notes().iter().cloned());
        devices.push(device);
        if newest.as_ref().is_none_or(|newest| newest.generation < superblock.generation) {
            newest = Some(superblock);
        }
    }
    let Some(superblock) = newest else { return Err(none_left(&notes.join("; "))) };
    let geometry = superblock.geometry;
    geometry.validate_mirrored().map_err(|error| {
        RunError::failed(
            MessageId::CacheDamaged,
            error,
            "restore the device from a copy, or create a new cache",
        )
    })?;
    Ok(parts(devices, geometry, places, notes))
}

fn parts(
    devices: Vec<Device>,
    geometry: Geometry,
    places: [Option<usize>; 2],
    notes: Vec<String>,
) -> PoolParts {
    let there = places.map(|place| place.is_some());
    PoolParts {
        devices,
        map: MemberMap::mirrored(geometry, places),
        pool_bytes: 2 * geometry.member_bytes(),
        mirror: Some(MirrorDevices { geometry, there }),
        notes,
        ..PoolParts::none()
    }
}

/// Creates a mirrored cache on two empty devices, or in new files.
fn make(places: [(&CacheSpec, Place); 2], making: Making, state_dir: &Path) -> Result<PoolParts, RunError> {
    let specs = places.each_ref().map(|(spec, _)| (*spec).clone());
    let (mut made, mut begun) = (Vec::new(), None);
    match make_on(places, making, state_dir, (&mut made, &mut begun)) {
        Ok(parts) => Ok(PoolParts { made, ..parts }),
        Err(error) => {
            // A useless file of ours must not obstruct the next attempt.
            made.iter().for_each(|path| remove_made(path));
            if let Some(uuid) = begun {
                // The operator gets the first error.
                let _ = NewCache::new(uuid, &specs, made).unmake(&MayWait::here(), state_dir);
            }
            Err(error)
        }
    }
}

fn make_on(
    places: [(&CacheSpec, Place); 2],
    making: Making,
    state_dir: &Path,
    (made, begun): (&mut Vec<PathBuf>, &mut Option<CacheUuid>),
) -> Result<PoolParts, RunError> {
    let specs = places.each_ref().map(|(spec, _)| (*spec).clone());
    let (mut devices, mut sizes, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    for (spec, place) in places {
        let device = match place {
            Place::Empty(device) => making.check_empty(&device).map(|()| device)?,
            Place::Begun(device) => device,
            _ => {
                create_file(spec, making, &mut notes)?;
                made.push(spec.path.clone());
                wait_for(|| Device::open_cache(&spec.path, DeviceOptions::default())).map_err(device_error)?
            }
        };
        notes.extend(device.notes().iter().cloned());
        sizes.push(spec.size_bytes.unwrap_or(u64::MAX).min(device.size_bytes()));
        devices.push(device);
    }
    let bytes = sizes.iter().copied().min().unwrap_or(0);
    let geometry = mirrored_geometry(bytes, making)?;
    if sizes.iter().any(|size| *size != bytes) {
        let named = devices.iter().zip(&sizes);
        let named: Vec<String> = named
            .map(|(device, size)| format!("{} has {}", device.path().display(), ByteSize(*size)))
            .collect();
        notes.push(format!("{}: {} of each are used", named.join(", "), ByteSize(geometry.member_bytes())));
    }
    let params = new_params(geometry)?;
    *begun = Some(params.uuid);
    let new_cache = NewCache::new(params.uuid, &specs, made.clone());
    let notes_of_it = Notes::new(params.uuid).begin(state_dir, &[])?;
    let (a, b) = (new_tag()?, new_tag()?);
    let tags = [a, if a == b { b ^ 2 } else { b }];
    let writes = format_mirrored(&params, tags)
        .map_err(|error| RunError::failed(MessageId::CacheGeometry, error, "choose another layout"))?;
    for (offset, bytes) in writes {
        let (member, offset) = geometry.mirror_place(offset);
        let device = &devices[member];
        device.write_at(offset, &bytes).and_then(|()| device.flush()).map_err(device_error)?;
    }
    devices.iter().for_each(|device| forebay_io::announce_change(device.path()));
    let parts = parts(devices, geometry, [Some(0), Some(1)], notes);
    Ok(PoolParts { mirror_notes: Some(notes_of_it), new_cache: Some(new_cache), ..parts })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::mirror_notes::{is_noted_out, tests::note};
    use std::fs;

    struct Here {
        folder: tempfile::TempDir,
        state: PathBuf,
    }

    impl Here {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            Self { state: folder.path().join("state"), folder }
        }

        fn spec(&self, name: &str) -> CacheSpec {
            CacheSpec { path: self.folder.path().join(name), size_bytes: Some(8 << 20) }
        }

        fn open(&self, specs: &[CacheSpec]) -> Result<PoolParts, RunError> {
            let making = Making {
                segment_blocks: Some(16),
                preallocate: false,
                mirror: true,
                key: None,
                permit: None,
            };
            open_mirrored(specs, making, &self.state)
        }

        /// The message with which they are refused.
        fn refused(&self, specs: &[CacheSpec]) -> String {
            self.open(specs).unwrap_err().to_string()
        }

        /// Fails a device out, as the pool does; returns the identity of the cache.
        fn put_out(&self, spec: &CacheSpec) -> CacheUuid {
            let Place::Member(found) = place_of(spec).unwrap() else { panic!("no cache") };
            note(&self.state, found.superblock.uuid, found.tag()).unwrap();
            found.superblock.uuid
        }

        /// Changes the superblock of a device, as a device that stays in use does.
        fn rewrite(spec: &CacheSpec, change: impl Fn(&mut Superblock)) {
            let Place::Member(mut found) = place_of(spec).unwrap() else { panic!("no cache") };
            change(&mut found.superblock);
            for copy in [0, 1] {
                let at = Geometry::superblock_offset(copy);
                found.device.write_at(at, &found.superblock.encode()).unwrap();
            }
        }
    }

    fn there(parts: &PoolParts) -> [bool; 2] {
        parts.mirror.unwrap().there
    }

    /// A device that the notes list is left out.
    #[test]
    fn mirror_devices_are_found_in_any_order() {
        let here = Here::new();
        let (a, b) = (here.spec("a"), here.spec("b"));
        let made = here.open(&[a.clone(), b.clone()]).unwrap();
        assert!(made.new_cache.is_some() && there(&made) == [true; 2]);
        drop(made);
        let turned = here.open(&[b.clone(), a.clone()]).unwrap();
        assert!(turned.new_cache.is_none() && there(&turned) == [true; 2]);
        let first = turned.map.place(0, 4096).unwrap().0;
        assert_eq!(turned.devices[first].path(), a.path);
        drop(turned);
        here.put_out(&a);
        let one = here.open(&[a.clone(), b.clone()]).unwrap();
        assert_eq!((there(&one), one.devices.len()), ([false, true], 1));
        assert!(one.notes.iter().any(|note| note.contains("failed out before")), "{:?}", one.notes);
        drop(one);
        fs::remove_file(&b.path).unwrap();
        let none = here.refused(&[a.clone(), b.clone()]);
        assert!(none.contains("stale and not used") && none.contains("b is missing"), "{none}");
        fs::write(&b.path, "something else").unwrap();
        assert!(here.refused(&[a, b]).contains("stale and not used"));
    }

    #[test]
    fn single_device_without_notes_is_refused() {
        let here = Here::new();
        let (a, b) = (here.spec("a"), here.spec("b"));
        drop(here.open(&[a.clone(), b.clone()]).unwrap());
        fs::remove_dir_all(&here.state).unwrap();
        fs::rename(&b.path, here.folder.path().join("aside")).unwrap();
        let why = here.refused(&[a.clone(), b.clone()]);
        assert!(why.contains("b is missing") && why.contains("it is unknown whether"), "{why}");
        fs::rename(here.folder.path().join("aside"), &b.path).unwrap();
        drop(here.open(&[a.clone(), b.clone()]).unwrap());
        fs::remove_file(&b.path).unwrap();
        assert_eq!(there(&here.open(&[a, b]).unwrap()), [true, false]);
    }

    #[test]
    fn device_put_out_stays_out_without_notes() {
        fn gone(of: &mut Superblock, out: Option<u8>) {
            of.generation += 1;
            of.mirror.as_mut().unwrap().out = out;
        }
        let called_out = |of: &mut Superblock| gone(of, Some(1));
        let long_alone = |of: &mut Superblock| of.generation += 2;
        let replaced = |of: &mut Superblock| {
            gone(of, None);
            of.mirror.as_mut().unwrap().tags[1] ^= 6;
        };
        type Change = fn(&mut Superblock);
        let ways = [("called out", called_out as Change), ("long alone", long_alone), ("replaced", replaced)];
        for (way, change) in ways {
            for lost in [true, false] {
                let here = Here::new();
                let (a, b) = (here.spec("a"), here.spec("b"));
                drop(here.open(&[a.clone(), b.clone()]).unwrap());
                let Place::Member(found) = place_of(&b).unwrap() else { panic!("no cache") };
                let (uuid, tag) = (found.superblock.uuid, found.tag());
                drop(found);
                Here::rewrite(&a, change);
                if lost {
                    fs::remove_dir_all(&here.state).unwrap();
                }
                let both = here.open(&[a.clone(), b.clone()]).unwrap();
                assert_eq!(there(&both), [true, false], "{way}");
                drop(both);
                assert_eq!(is_noted_out(&here.state, uuid, tag).unwrap(), Some(true), "{way}");
                fs::remove_file(&a.path).unwrap();
                let why = here.refused(&[a, b]);
                assert!(why.contains("stale and not used"), "{way}: {why}");
            }
        }
    }

    #[test]
    fn split_mirror_is_refused_and_not_noted() {
        let here = Here::new();
        let (a, b) = (here.spec("a"), here.spec("b"));
        drop(here.open(&[a.clone(), b.clone()]).unwrap());
        fs::remove_dir_all(&here.state).unwrap();
        for (spec, other) in [(&a, 1), (&b, 0)] {
            Here::rewrite(spec, |of| {
                of.generation += 1;
                of.mirror.as_mut().unwrap().out = Some(other);
            });
        }
        let split = |both: &[CacheSpec]| here.refused(both).contains("do not show which of them is current");
        assert!(split(&[a.clone(), b.clone()]) && split(&[b.clone(), a.clone()]));
        Here::rewrite(&a, |of| of.generation += 3);
        assert!(split(&[a.clone(), b.clone()]) && split(&[b, a]), "the older one calls the newer one out");
        assert!(!here.state.exists());
    }

    #[test]
    fn crash_between_superblocks_puts_none_out() {
        let here = Here::new();
        let (a, b) = (here.spec("a"), here.spec("b"));
        drop(here.open(&[a.clone(), b.clone()]).unwrap());
        fs::remove_dir_all(&here.state).unwrap();
        Here::rewrite(&b, |of| of.generation += 1);
        assert_eq!(there(&here.open(&[a, b]).unwrap()), [true; 2]);
    }

    #[test]
    fn empty_device_replaces_one_that_is_out() {
        let here = Here::new();
        let (a, b) = (here.spec("a"), here.spec("b"));
        drop(here.open(&[a.clone(), b.clone()]).unwrap());
        for (bytes, taken) in [(8 << 20, true), (4 << 20, false)] {
            fs::remove_file(&b.path).unwrap();
            fs::File::create(&b.path).unwrap().set_len(bytes).unwrap();
            let parts = here.open(&[a.clone(), b.clone()]).unwrap();
            assert_eq!((there(&parts), parts.fresh.is_some()), ([true, false], taken));
        }
    }

    #[test]
    fn unrelated_devices_are_refused() {
        let here = Here::new();
        let (a, b) = (here.spec("a"), here.spec("b"));
        drop(here.open(&[a.clone(), b.clone()]).unwrap());
        let copy = here.spec("copy");
        fs::copy(&a.path, &copy.path).unwrap();
        assert!(here.refused(&[a.clone(), copy]).contains("both claim to be device 1"));
        let (c, d) = (here.spec("c"), here.spec("d"));
        drop(here.open(&[c, d.clone()]).unwrap());
        assert!(here.refused(&[a.clone(), d]).contains("belongs to the cache"));
        assert!(here.refused(std::slice::from_ref(&a)).contains("two devices, not 1"));
        assert!(here.refused(&[a.clone(), a.clone()]).contains("the same device"));
        assert!(here.refused(&[a.clone(), b.clone(), here.spec("e")]).contains("two devices, not 3"));
        let held = Device::open_cache(&b.path, DeviceOptions::default()).unwrap();
        let why = here.refused(&[a, b]);
        assert!(why.contains("in use") || why.contains("lock"), "{why}");
        drop(held);
    }

    #[test]
    fn unequal_devices_use_the_smaller_size() {
        let here = Here::new();
        let (a, b) = (here.spec("a"), CacheSpec { size_bytes: Some(12 << 20), ..here.spec("b") });
        let made = here.open(&[a, b]).unwrap();
        assert!(made.notes.iter().any(|note| note.contains("of each are used")), "{:?}", made.notes);
        assert!(made.mirror.unwrap().geometry.member_bytes() <= 8 << 20);
        let (c, tiny) = (here.spec("c"), CacheSpec { size_bytes: Some(1 << 20), ..here.spec("d") });
        assert!(here.open(&[c.clone(), tiny.clone()]).is_err());
        assert!(!c.path.exists() && !tiny.path.exists());
        let nowhere =
            Here { state: here.folder.path().join("a/state"), folder: tempfile::tempdir().unwrap() };
        let (e, f) = (nowhere.spec("e"), nowhere.spec("f"));
        assert!(nowhere.refused(&[e.clone(), f]).contains("cannot write"));
        assert!(!e.path.exists());
    }
}

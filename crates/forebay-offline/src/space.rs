//! The devices of a cache as one row of blocks, as the format numbers them.
//!
//! The devices may be given in any order: their headers determine the order. [`Space::open`] finds
//! the first one, which has the superblocks. [`Space::arrange`] puts the others behind it.
//! [`Space::arrange_what_is_there`] leaves holes where devices are missing, for salvage.
//!
//! Invariants
//! - Every device is opened for reading only and locked. A cache that a daemon has open is refused.
//! - A read outside of all devices fails; it never returns zeroes.
//! - A mirrored cache is read through both of its devices or through one ([`Mirror`]).

use forebay_admin::MessageId;
use std::path::{Path, PathBuf};

use forebay_crypt::CacheCipher;
use forebay_format::member::{DATA_START_BLOCK, MEMBERS_MAX, MemberHeader, divide};
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, CacheUuid, Encryption};
use forebay_io::{Device, DeviceError, DeviceOptions};

use crate::device::{superblocks, wait_for};
use crate::mirror::{Mirror, Noted};
use crate::{Key, Refusal, members, unlock};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The devices and key given for a cache.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// Its devices, in any order.
    pub paths: &'a [PathBuf],
    /// Its key, if it is encrypted.
    pub key: Option<&'a Key>,
}

impl<'a> From<&'a [PathBuf]> for Given<'a> {
    fn from(paths: &'a [PathBuf]) -> Self {
        Self { paths, key: None }
    }
}

/// The devices of a cache.
#[derive(Debug)]
pub(crate) struct Space {
    layout: Layout,
    /// The others, in the order of the pool's space; none if the cache is mirrored.
    others: Vec<(Device, MemberHeader)>,
    /// The cipher for reads, and the superblock's description of it.
    cipher: Option<(CacheCipher, Encryption)>,
    /// All paths, as given.
    paths: Vec<PathBuf>,
}

#[derive(Debug)]
enum Layout {
    /// The device with the superblocks.
    First(Device),
    Mirrored(Box<Mirror>),
}

impl Space {
    /// Opens devices that are not in use; `noted` returns which devices of a mirrored cache are
    /// recorded as out.
    pub(crate) fn open(paths: &[PathBuf], noted: Noted<'_>) -> Result<Self, Refusal> {
        if paths.len() > MEMBERS_MAX {
            return Err(Refusal::usage(
                MessageId::CacheTooManyDevices,
                format!("a cache lies on {MEMBERS_MAX} devices at most"),
            ));
        }
        let mut firsts = Vec::new();
        let mut others = Vec::new();
        for path in paths {
            let device = open(path)?;
            match members::read_header(&device, &[]) {
                Ok(header) => others.push((device, header)),
                Err(_) => firsts.push(device),
            }
        }
        if firsts.iter().any(|device| newest(device).is_some_and(|found| found.mirror.is_some())) {
            return Self::mirrored(firsts, &others, paths, noted);
        }
        others.sort_by_key(|(_, header)| header.index);
        // A device with damaged headers looks like a first one, but has no superblocks either.
        let at = firsts.iter().position(|device| newest(device).is_some()).unwrap_or(0);
        if firsts.is_empty() {
            let what = format!("{}: further devices of a cache, and its first one is missing", list(paths));
            return Err(Refusal::new(MessageId::CacheMemberMissing, what)
                .hint("give all devices of the cache, in any order"));
        }
        let first = firsts.swap_remove(at);
        if let Some(stranger) = firsts.first() {
            let what = format!(
                "{}: neither the first device of a cache (that is {}) nor a further one: no intact member header",
                stranger.path().display(),
                first.path().display()
            );
            return Err(Refusal::new(MessageId::CacheMemberForeign, what)
                .hint("give the devices of one cache; leave out what does not belong to it"));
        }
        if let Some(superblock) = newest(&first) {
            for (device, header) in &mut others {
                *header = members::read_header(device, superblock.members.tags()).unwrap_or(*header);
            }
        }
        Ok(Self { layout: Layout::First(first), others, cipher: None, paths: paths.to_vec() })
    }

    fn mirrored(
        devices: Vec<Device>,
        others: &[(Device, MemberHeader)],
        paths: &[PathBuf],
        noted: Noted<'_>,
    ) -> Result<Self, Refusal> {
        let mut found = Vec::new();
        for device in devices {
            match newest(&device) {
                Some(superblock) => found.push((device, superblock)),
                None => return Err(stranger(&device)),
            }
        }
        if let Some((device, _)) = others.first() {
            return Err(stranger(device));
        }
        let layout = Layout::Mirrored(Box::new(Mirror::new(found, noted)?));
        Ok(Self { layout, others: Vec::new(), cipher: None, paths: paths.to_vec() })
    }

    /// Returns the two devices, if the cache is mirrored.
    pub(crate) fn mirror(&self) -> Option<&Mirror> {
        match &self.layout {
            Layout::First(_) => None,
            Layout::Mirrored(mirror) => Some(mirror),
        }
    }

    /// Returns the two devices, if the cache is mirrored.
    pub(crate) fn mirror_mut(&mut self) -> Option<&mut Mirror> {
        match &mut self.layout {
            Layout::First(_) => None,
            Layout::Mirrored(mirror) => Some(mirror),
        }
    }

    /// Decrypts reads with the key of the cache from now on, if it is encrypted.
    ///
    /// # Errors
    /// Refuses if the key is missing, is another one, or is not needed.
    pub(crate) fn unlock(&mut self, superblock: &Superblock, key: Option<&Key>) -> Result<(), Refusal> {
        let cipher = unlock(superblock, key, &self.shown())?;
        self.cipher = cipher.zip(superblock.encryption);
        Ok(())
    }

    /// Decrypts reads as if the cache, whose superblocks are lost, had this identity and this key.
    pub(crate) fn unlock_as(&mut self, uuid: CacheUuid, key: &Key) {
        self.cipher = Some(key.of_cache(uuid));
    }

    /// Reads without decryption from now on.
    pub(crate) fn read_plainly(&mut self) {
        self.cipher = None;
    }

    /// Returns the description of the encryption for a superblock.
    pub(crate) fn encryption(&self) -> Option<Encryption> {
        self.cipher.as_ref().map(|(_, mark)| *mark)
    }

    /// Reads whole sectors from the first device, independent of the others.
    pub(crate) fn read_first(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ()> {
        self.first().read_at(offset, bytes).map_err(drop)?;
        self.decrypt(offset, bytes);
        Ok(())
    }

    fn decrypt(&self, offset: u64, bytes: &mut [u8]) {
        if let Some((cipher, _)) = &self.cipher {
            cipher.decrypt(offset, bytes);
        }
    }

    /// Returns the device with the superblocks.
    pub(crate) fn first(&self) -> &Device {
        match &self.layout {
            Layout::First(device) => device,
            Layout::Mirrored(mirror) => mirror.device(),
        }
    }

    /// Returns the paths, for messages.
    pub(crate) fn shown(&self) -> String {
        list(&self.paths)
    }

    /// Checks that the devices are exactly those that the superblock lists.
    pub(crate) fn arrange(&mut self, superblock: &Superblock) -> Result<(), Refusal> {
        for pair in self.others.windows(2) {
            let [(a, one), (b, other)] = pair else { continue };
            if one.index == other.index && one.uuid == other.uuid {
                let (a, b) = (a.path().display(), b.path().display());
                return Err(Refusal::new(
                    MessageId::CacheMemberTwice,
                    format!("{a} and {b} both claim to be member {}", one.index),
                )
                .hint("one is a copy, or was taken out of the pool: give the one that is in use"));
            }
        }
        if self.mirror().is_some() {
            return Ok(()); // Checked when they were opened.
        }
        let (devices, _): (Vec<_>, Vec<_>) = std::mem::take(&mut self.others).into_iter().unzip();
        let headers = members::open_members(superblock, self.first(), &devices)?;
        self.others = devices.into_iter().zip(headers).collect();
        Ok(())
    }

    /// Keeps the devices that certainly belong to the cache. Returns the problems of the others,
    /// and the missing devices.
    pub(crate) fn arrange_what_is_there(&mut self, superblock: &Superblock) -> Vec<String> {
        let tags = superblock.members.tags();
        let mut problems = Vec::new();
        let mut seen = [false; MEMBERS_MAX];
        self.others.retain(|(device, header)| {
            let at = usize::from(header.index);
            let right = header.uuid == superblock.uuid && tags.get(at - 1) == Some(&header.tag) && !seen[at];
            if right {
                seen[at] = true;
            } else {
                problems.push(format!(
                    "{}: does not belong to this cache now; left out",
                    device.path().display()
                ));
            }
            right
        });
        let mut headers: Vec<MemberHeader> = self.headers().copied().collect();
        divide(&mut headers, &superblock.members, &superblock.geometry);
        for ((_, header), divided) in self.others.iter_mut().zip(headers) {
            *header = divided;
        }
        let missing = (1..=tags.len()).filter(|at| !seen[*at]);
        problems.extend(missing.map(|at| format!("member {at} is missing: its data cannot be read")));
        problems
    }

    /// Returns the members after the first, of any cache.
    pub(crate) fn headers(&self) -> impl Iterator<Item = &MemberHeader> {
        self.others.iter().map(|(_, header)| header)
    }

    /// Returns the devices of a cache that is not mirrored, in the order of the pool's space.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &Device> {
        std::iter::once(self.first()).chain(self.others.iter().map(|(device, _)| device))
    }

    /// Returns the bytes of the pool's space, as far as the given devices reach.
    pub(crate) fn bytes(&self) -> u64 {
        if let Some(mirror) = self.mirror() {
            return mirror.bytes();
        }
        self.others.last().map_or(self.first().size_bytes(), |(device, header)| {
            let there = (device.size_bytes() / BLOCK).saturating_sub(DATA_START_BLOCK);
            (header.first_block + header.blocks.min(there)).saturating_mul(BLOCK)
        })
    }

    /// Reads bytes that lie on one device, as every single write of a cache does.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ()> {
        self.read_raw(offset, bytes)?;
        self.decrypt(offset, bytes);
        Ok(())
    }

    fn read_raw(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ()> {
        if let Some(mirror) = self.mirror() {
            return mirror.read(offset, bytes);
        }
        let end = offset.checked_add(bytes.len() as u64).ok_or(())?;
        let next = self.others.first().map_or(u64::MAX, |(_, header)| header.first_block * BLOCK);
        if end <= next.min(self.first().size_bytes()) {
            return self.first().read_at(offset, bytes).map_err(drop);
        }
        for (device, header) in &self.others {
            let from = header.first_block * BLOCK;
            let last = (header.first_block + header.blocks) * BLOCK;
            if from <= offset && end <= last {
                let place = DATA_START_BLOCK * BLOCK + (offset - from);
                let there = place + bytes.len() as u64 <= device.size_bytes();
                return if there { device.read_at(place, bytes).map_err(drop) } else { Err(()) };
            }
        }
        Err(())
    }
}

fn open(path: &Path) -> Result<Device, Refusal> {
    let options = || DeviceOptions { read_only: true, direct: false, ..DeviceOptions::default() };
    wait_for(|| Device::open_cache(path, options())).map_err(|error| match error {
        DeviceError::InUse { .. } => Refusal::new(MessageId::DeviceInUse, error.to_string())
            .hint("stop the daemon first; a cache in use changes while it is read"),
        _ => Refusal::new(crate::message::of_device(&error), error.to_string())
            .hint("name the files or block devices that the cache was made or grown with"),
    })
}

/// Returns the superblock of a device that has one.
fn newest(device: &Device) -> Option<Superblock> {
    Superblock::choose(superblocks(device)).ok()
}

fn stranger(device: &Device) -> Refusal {
    Refusal::new(
        MessageId::CacheMemberForeign,
        format!("{}: no device of the mirrored cache: it has no intact superblock", device.path().display()),
    )
    .hint("leave it out; the other device is enough")
}

fn list(paths: &[PathBuf]) -> String {
    let shown: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    shown.join(", ")
}

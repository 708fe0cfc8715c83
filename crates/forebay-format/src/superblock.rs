//! The superblock: identity, geometry, and the checkpoint in effect.
//!
//! It lies within one 512-byte sector, the unit that a device writes atomically, and is kept twice.
//! An update writes copy A, flushes, writes copy B, flushes: at any instant at least one copy is
//! intact, and the intact copy with the higher `generation` counts.

use crate::checkpoint::Checkpoint;
use crate::checkpoint::increment::ChainReader;
use crate::encryption::Encryption;
use crate::error::FormatError;
use crate::geometry::Geometry;
use crate::layout::{Field, check_envelope, check_zero, crc_without, fitting, structure};
use crate::member::{MEMBERS_MAX, Members};
use crate::mirror::MirrorMark;
use crate::units::{BLOCK_BYTES, CacheUuid, VERSION};

const _: () = assert!(F_MEMBER_TAGS.len == (MEMBERS_MAX - 1) * 8);

/// Version of the superblock of a mirrored cache: a reader that supports only [`VERSION`] must not
/// open one member alone.
pub const MIRROR_VERSION: u32 = 2;

/// Version of the superblock of an encrypted cache, mirrored or not: a reader without the cipher
/// would treat all contents as damaged.
pub const ENCRYPTED_VERSION: u32 = 3;

/// Version of the superblock of any cache whose checkpoint is a chain
/// ([`crate::checkpoint::increment`]). After an orderly stop the checkpoint is whole again.
pub const CHAIN_VERSION: u32 = 4;

/// First bytes of a superblock.
pub const MAGIC: [u8; 8] = *b"FOREBAY\0";

/// Contents of superblock A while a cache is being created on a device, or the device is being
/// filled as a member of a mirrored cache: nothing on it counts yet.
const BEING_MADE: &[u8] =
    b"FBAYNEW\0a cache is being made or filled here: nothing on this device counts yet\n";

/// The block that marks a device as a cache under construction, which contains no data of value.
#[must_use]
pub fn being_made() -> Vec<u8> {
    let mut block = BEING_MADE.to_vec();
    block.resize(BLOCK_BYTES, 0);
    block
}

/// The only cipher.
const AES_256_XTS: u64 = 1;

structure! { "superblock", 512;
    F_MAGIC = "magic", 0, 8;
    F_VERSION = "version", 8, 4;
    F_STATE = "state", 12, 4;
    F_UUID = "uuid", 16, 16;
    F_GENERATION = "generation", 32, 8;
    F_EPOCH = "epoch", 40, 8;
    F_CHECKPOINT = "checkpoint_generation", 48, 8;
    F_DEVICE_BLOCKS = "device_blocks", 56, 8;
    F_SEGMENTS_START = "segments_start_block", 64, 8;
    F_SEGMENT_BLOCKS = "segment_blocks", 72, 4;
    F_SEGMENT_COUNT = "segment_count", 76, 4;
    F_SLOT_BLOCKS = "checkpoint_slot_blocks", 80, 4;
    F_SHARD_INDEX = "shard_index", 84, 2;
    F_SHARD_COUNT = "shard_count", 86, 2;
    F_CREATED = "created_unix_s", 88, 8;
    F_WRITTEN_BY = "written_by", 96, 32;
    F_MEMBER_COUNT = "member_count", 128, 2;
    F_RESERVED_A = "reserved_a", 130, 6;
    F_MEMBER_TAGS = "member_tags", 136, 120;
    F_MIRROR = "mirror", 256, 1;
    F_MIRROR_OUT = "mirror_out", 257, 1;
    F_RESERVED_B = "reserved_b", 258, 6;
    F_MIRROR_TAGS = "mirror_tags", 264, 16;
    F_ENCRYPTION = "encryption", 280, 1;
    F_RESERVED_C = "reserved_c", 281, 7;
    F_KEY_CHECK = "key_check", 288, 16;
    F_BASE = "base_generation", 304, 8;
    F_CHAIN = "increment_blocks", 312, 4;
    F_RESERVED = "reserved", 316, 192;
    F_CRC = "crc32c", 508, 4;
}

/// How much [`Superblock::failed`] raises the generation: above that of any superblock in flight
/// when the cache failed.
const FAILED_STEP: u64 = 16;

/// Whether the last daemon stopped in an orderly way, or recorded a cache failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum CacheState {
    /// Stopped after a final checkpoint: the checkpoint is complete and nothing follows it.
    Clean = 1,
    /// In use, or ended by a crash: the log after the checkpoint must be read.
    Open = 2,
    /// The cache failed, and its volumes continued without it: its contents are older than theirs.
    /// Like [`CacheState::Open`] for tools that extract dirty data; never opened again.
    Failed = 3,
}

/// A checkpoint that is a chain ([`crate::checkpoint::increment`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chain {
    /// Generation of its first part, a whole checkpoint or base; at least 1.
    pub base: u64,
    /// Blocks of all increments.
    pub blocks: u32,
}

/// Contents of a superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Identity of this cache.
    pub uuid: CacheUuid,
    /// Increases with every superblock written.
    pub generation: u64,
    /// Increases with every start; stamps all batches, so that recovery ignores leftovers of
    /// earlier runs.
    pub epoch: u64,
    /// Generation of the checkpoint in effect.
    pub checkpoint_generation: u64,
    /// Set if the checkpoint is a chain; `None` for a whole one.
    pub chain: Option<Chain>,
    /// State at the last update.
    pub state: CacheState,
    /// Layout of the device.
    pub geometry: Geometry,
    /// Devices of the cache.
    pub members: Members,
    /// Set if the cache is mirrored: this copy's record of its two members.
    pub mirror: Option<MirrorMark>,
    /// Set if the cache is encrypted: identifies its key.
    pub encryption: Option<Encryption>,
    /// This shard among the shards of the cache (0 of 1 until a cache is sharded).
    pub shard_index: u16,
    /// Number of shards of the cache.
    pub shard_count: u16,
    /// Creation time of the cache, in seconds since 1970.
    pub created_unix_s: u64,
    /// Product and version that wrote this superblock, UTF-8, for operators.
    pub written_by: String,
}

impl Superblock {
    /// Encodes into one block, of which the first sector is used. Truncates a long `written_by`.
    ///
    /// # Panics
    /// If `shard_index` is not below `shard_count`: a bug of the caller.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.shard_index < self.shard_count, "shard out of bounds");
        let mut block = vec![0; BLOCK_BYTES];
        let to = &mut block[..];
        F_MAGIC.put_bytes(to, &MAGIC);
        F_VERSION.put(to, u64::from(self.version()));
        F_STATE.put(to, self.state as u64);
        F_UUID.put_bytes(to, &self.uuid.0);
        F_GENERATION.put(to, self.generation);
        F_EPOCH.put(to, self.epoch);
        F_CHECKPOINT.put(to, self.checkpoint_generation);
        F_DEVICE_BLOCKS.put(to, self.geometry.device_blocks);
        F_SEGMENTS_START.put(to, self.geometry.segments_start_block);
        F_SEGMENT_BLOCKS.put(to, u64::from(self.geometry.segment_blocks));
        F_SEGMENT_COUNT.put(to, u64::from(self.geometry.segment_count));
        F_SLOT_BLOCKS.put(to, u64::from(self.geometry.checkpoint_slot_blocks));
        F_MEMBER_COUNT.put(to, self.members.count() as u64);
        put_tags(F_MEMBER_TAGS, to, self.members.tags());
        if let Some(mirror) = &self.mirror {
            F_MIRROR.put(to, 1 + u64::from(mirror.member));
            F_MIRROR_OUT.put(to, mirror.out.map_or(0, |out| 1 + u64::from(out)));
            put_tags(F_MIRROR_TAGS, to, &mirror.tags);
        }
        if let Some(encryption) = &self.encryption {
            F_ENCRYPTION.put(to, AES_256_XTS);
            F_KEY_CHECK.put_bytes(to, &encryption.key_check);
        }
        if let Some(chain) = &self.chain {
            F_BASE.put(to, chain.base);
            F_CHAIN.put(to, u64::from(chain.blocks));
        }
        F_SHARD_INDEX.put(to, u64::from(self.shard_index));
        F_SHARD_COUNT.put(to, u64::from(self.shard_count));
        F_CREATED.put(to, self.created_unix_s);
        F_WRITTEN_BY.put_bytes(to, fitting(&self.written_by, F_WRITTEN_BY.len).as_bytes());
        let crc = crc_without(&to[..STRUCTURE.len], F_CRC);
        F_CRC.put(to, u64::from(crc));
        block
    }

    /// Returns this superblock as that of a failed cache, with a generation above that of every
    /// other one that can still reach the device.
    #[must_use]
    pub fn failed(&self) -> Self {
        match self.state {
            CacheState::Failed => self.clone(),
            _ => {
                let generation = self.generation.saturating_add(FAILED_STEP);
                Self { state: CacheState::Failed, generation, ..self.clone() }
            }
        }
    }

    /// The lowest version whose readers support this superblock.
    #[must_use]
    pub fn version(&self) -> u32 {
        match (&self.chain, &self.encryption, &self.mirror) {
            (Some(_), _, _) => CHAIN_VERSION,
            (None, Some(_), _) => ENCRYPTED_VERSION,
            (None, None, Some(_)) => MIRROR_VERSION,
            (None, None, None) => VERSION,
        }
    }

    /// Generation of the part with the state of all segments: of a whole checkpoint, or of the
    /// chain's first part. It determines the slot.
    #[must_use]
    pub fn image_generation(&self) -> u64 {
        self.chain.map_or(self.checkpoint_generation, |chain| chain.base)
    }

    /// Place of one copy (0 or 1) of the checkpoint: offset and length in bytes, for
    /// [`Superblock::read_checkpoint`].
    #[must_use]
    pub fn checkpoint_place(&self, copy: u64) -> (u64, u64) {
        let blocks = self.geometry.checkpoint_blocks() + self.chain.map_or(0, |chain| chain.blocks.into());
        let blocks = blocks.min(self.geometry.checkpoint_slot_blocks.into());
        (self.geometry.checkpoint_offset(self.image_generation(), copy), blocks * BLOCK_BYTES as u64)
    }

    /// Reads the checkpoint in effect from one copy of it ([`Superblock::checkpoint_place`]).
    ///
    /// # Errors
    /// As [`Checkpoint::decode`], of any part; or a part is not the one that the superblock names,
    /// or of another cache or layout.
    pub fn read_checkpoint(&self, bytes: &[u8]) -> Result<Checkpoint, FormatError> {
        let mut reader = ChainReader::begin(bytes)?;
        self.check_image(reader.state())?;
        let blocks = self.chain.map_or(0, |chain| u64::from(chain.blocks));
        let mut read = 0;
        while read < blocks {
            let at = (reader.start() + read) as usize * BLOCK_BYTES;
            read += reader.next(bytes.get(at..).unwrap_or_default())?;
        }
        let check = |field, expected, found| same("checkpoint increment", field, expected, found);
        check("generation", self.checkpoint_generation, reader.generation())?;
        check("increment_blocks", blocks, read)?;
        reader.finish()
    }

    /// Checked before increments are applied: the layout bounds their effect.
    fn check_image(&self, image: &Checkpoint) -> Result<(), FormatError> {
        let check = |field, expected, found| same("checkpoint header", field, expected, found);
        let geometry = &self.geometry;
        check("uuid", self.uuid.tag(), image.uuid.tag())?;
        check("generation", self.image_generation(), image.generation)?;
        check("segment_count", geometry.segment_count.into(), image.segments.len() as u64)?;
        check("segment_blocks", geometry.segment_blocks.into(), image.segment_blocks.into())
    }

    /// Decodes one copy.
    ///
    /// # Errors
    /// Not a superblock, torn, of a newer version, or with fields out of range. The geometry is not
    /// checked against the device: see [`Geometry::validate`].
    pub fn decode(block: &[u8]) -> Result<Self, FormatError> {
        let version = (F_VERSION, CHAIN_VERSION);
        check_envelope(&STRUCTURE, block, (F_MAGIC, &MAGIC), version, F_CRC)?;
        let state = match F_STATE.get(block) {
            1 => CacheState::Clean,
            2 => CacheState::Open,
            3 => CacheState::Failed,
            other => return Err(STRUCTURE.wrong(F_STATE, other)),
        };
        check_zero(&STRUCTURE, block, &[F_RESERVED_A, F_RESERVED_B, F_RESERVED_C, F_RESERVED])?;
        let members = decode_members(block)?;
        let mirror = decode_mirror(block)?;
        let encryption = decode_encryption(block)?;
        if F_SHARD_INDEX.get(block) >= F_SHARD_COUNT.get(block) {
            return Err(STRUCTURE.wrong(F_SHARD_INDEX, F_SHARD_INDEX.get(block)));
        }
        let written_by = F_WRITTEN_BY.bytes(block);
        let end = written_by.iter().position(|byte| *byte == 0).unwrap_or(written_by.len());
        Ok(Self {
            uuid: CacheUuid(F_UUID.array(block)),
            generation: F_GENERATION.get(block),
            epoch: F_EPOCH.get(block),
            checkpoint_generation: F_CHECKPOINT.get(block),
            chain: decode_chain(block)?,
            state,
            geometry: Geometry {
                device_blocks: F_DEVICE_BLOCKS.get(block),
                segment_blocks: F_SEGMENT_BLOCKS.get_u32(block),
                segment_count: F_SEGMENT_COUNT.get_u32(block),
                checkpoint_slot_blocks: F_SLOT_BLOCKS.get_u32(block),
                segments_start_block: F_SEGMENTS_START.get(block),
            },
            members,
            mirror,
            encryption,
            shard_index: F_SHARD_INDEX.get(block) as u16,
            shard_count: F_SHARD_COUNT.get(block) as u16,
            created_unix_s: F_CREATED.get(block),
            written_by: String::from_utf8_lossy(&written_by[..end]).into_owned(),
        })
    }

    /// The identity in a damaged copy, if its beginning is that of a superblock; it might be wrong.
    #[must_use]
    pub fn identity_of_damaged(block: &[u8]) -> Option<CacheUuid> {
        let whole = block.len() >= STRUCTURE.len && F_MAGIC.bytes(block) == MAGIC;
        whole.then(|| CacheUuid(F_UUID.array(block)))
    }

    /// Chooses between the two copies: the intact one with the higher generation.
    ///
    /// # Errors
    /// If neither copy can be used, the more informative error: a newer version is reported before
    /// damage, and damage before "this is not a Forebay superblock".
    pub fn choose(copies: [Result<Self, FormatError>; 2]) -> Result<Self, FormatError> {
        let weight = |error: &FormatError| match error {
            FormatError::Version { .. } => 3,
            FormatError::Magic { .. } => 1,
            _ => 2,
        };
        // A copy of a newer version outweighs an intact older one: the newer writer might have
        // changed anything.
        match copies {
            [Err(error @ FormatError::Version { .. }), _] | [_, Err(error @ FormatError::Version { .. })] => {
                Err(error)
            }
            [Ok(a), Ok(b)] => Ok(if b.generation > a.generation { b } else { a }),
            [Ok(only), Err(_)] | [Err(_), Ok(only)] => Ok(only),
            [Err(a), Err(b)] => Err(if weight(&b) > weight(&a) { b } else { a }),
        }
    }
}

fn put_tags(field: Field, to: &mut [u8], tags: &[u64]) {
    for (to, tag) in to[field.offset..].chunks_exact_mut(8).zip(tags) {
        to.copy_from_slice(&tag.to_le_bytes());
    }
}

fn tags_in(field: Field, block: &[u8]) -> impl Iterator<Item = u64> {
    let (tags, _) = field.bytes(block).as_chunks();
    tags.iter().map(|tag| u64::from_le_bytes(*tag))
}

fn same(structure: &'static str, field: &'static str, expected: u64, found: u64) -> Result<(), FormatError> {
    if expected == found {
        return Ok(());
    }
    Err(FormatError::Misplaced { structure, field, expected, found })
}

fn decode_mirror(block: &[u8]) -> Result<Option<MirrorMark>, FormatError> {
    let wrong = |field: Field| Err(STRUCTURE.wrong(field, field.get(block)));
    let (mark, out) = (F_MIRROR.get(block), F_MIRROR_OUT.get(block));
    let version = F_VERSION.get_u32(block);
    if version != MIRROR_VERSION && !(version > MIRROR_VERSION && mark != 0) {
        check_zero(&STRUCTURE, block, &[F_MIRROR, F_MIRROR_OUT, F_MIRROR_TAGS])?;
        return Ok(None);
    }
    if !(1..=2).contains(&mark) {
        return wrong(F_MIRROR);
    }
    if out > 2 || out == mark {
        return wrong(F_MIRROR_OUT);
    }
    let mut tags = [0; 2];
    tags.iter_mut().zip(tags_in(F_MIRROR_TAGS, block)).for_each(|(to, tag)| *to = tag);
    if tags.contains(&0) || tags[0] == tags[1] {
        return Err(STRUCTURE.wrong(F_MIRROR_TAGS, tags[0]));
    }
    Ok(Some(MirrorMark { member: mark as u8 - 1, out: (out as u8).checked_sub(1), tags }))
}

fn decode_chain(block: &[u8]) -> Result<Option<Chain>, FormatError> {
    if F_VERSION.get_u32(block) != CHAIN_VERSION {
        check_zero(&STRUCTURE, block, &[F_BASE, F_CHAIN])?;
        return Ok(None);
    }
    let chain = Chain { base: F_BASE.get(block), blocks: F_CHAIN.get_u32(block) };
    if chain.base == 0 || chain.base >= F_CHECKPOINT.get(block) {
        return Err(STRUCTURE.wrong(F_BASE, chain.base));
    }
    if chain.blocks == 0 { Err(STRUCTURE.wrong(F_CHAIN, 0)) } else { Ok(Some(chain)) }
}

fn decode_encryption(block: &[u8]) -> Result<Option<Encryption>, FormatError> {
    let version = F_VERSION.get_u32(block);
    let cipher = F_ENCRYPTION.get(block);
    if version != ENCRYPTED_VERSION && !(version > ENCRYPTED_VERSION && cipher != 0) {
        check_zero(&STRUCTURE, block, &[F_ENCRYPTION, F_KEY_CHECK])?;
        return Ok(None);
    }
    if cipher != AES_256_XTS {
        return Err(STRUCTURE.wrong(F_ENCRYPTION, cipher));
    }
    Ok(Some(Encryption { key_check: F_KEY_CHECK.array(block) }))
}

fn decode_members(block: &[u8]) -> Result<Members, FormatError> {
    let count = F_MEMBER_COUNT.get(block);
    let tags: Vec<u64> = tags_in(F_MEMBER_TAGS, block).collect();
    let used = (count as usize).checked_sub(1).filter(|used| *used < MEMBERS_MAX);
    let (tags, rest) = tags.split_at(used.ok_or(STRUCTURE.wrong(F_MEMBER_COUNT, count))?);
    if let Some(tag) = rest.iter().find(|tag| **tag != 0) {
        return Err(STRUCTURE.wrong(F_MEMBER_TAGS, *tag));
    }
    Members::new(tags).ok_or(STRUCTURE.wrong(F_MEMBER_TAGS, 0))
}

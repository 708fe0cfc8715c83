//! The bytes of a segment, and the batches in them.

use forebay_format::batch::{BatchHeader, Entry};
use forebay_format::{BLOCK_BYTES, CacheUuid};

/// Bytes read from a cache, and the blocks that are unreadable.
#[derive(Debug)]
pub struct Bytes {
    /// The bytes; zeroes where the device reported an error.
    pub bytes: Vec<u8>,
    /// Blocks, counted from the start.
    pub unreadable: Vec<u32>,
}

impl Bytes {
    /// Returns one block.
    pub fn block(&self, index: u32) -> Option<&[u8]> {
        let start = index as usize * BLOCK_BYTES;
        self.bytes.get(start..start + BLOCK_BYTES)
    }
}

/// A batch found in a segment.
#[derive(Debug)]
pub struct Batch {
    /// Number of its segment.
    pub segment: u32,
    /// Its header.
    pub header: BatchHeader,
    /// Block of the header, in its segment.
    pub start: u32,
    /// The entries of its header.
    pub entries: Vec<Entry>,
}

impl Batch {
    /// Returns the first block after the batch.
    pub fn end(&self) -> u32 {
        self.start + 1 + u32::from(self.header.payload_blocks)
    }

    /// Returns data entries with the block of the segment that holds their payload.
    pub fn data(&self) -> impl Iterator<Item = (u32, &Entry)> {
        let data = self.entries.iter().filter(|entry| entry.has_payload());
        data.zip(self.start + 1..).map(|(entry, index)| (index, entry))
    }
}

/// Returns the batch whose header is at block `start`, if the header is intact and in its place.
/// Does not check the payload.
pub fn batch_at(bytes: &Bytes, uuid: CacheUuid, segment: u32, start: u32) -> Result<Batch, String> {
    let block = bytes.block(start).ok_or("the segment ends here")?;
    if bytes.unreadable.contains(&start) {
        return Err("the device cannot read it".into());
    }
    let mut entries = Vec::new();
    let header = BatchHeader::decode(block, &mut entries).map_err(|error| error.to_string())?;
    header.check_place(uuid, segment, start).map_err(|error| error.to_string())?;
    let batch = Batch { segment, header, start, entries };
    if batch.end() as usize * BLOCK_BYTES > bytes.bytes.len() {
        return Err("the batch goes beyond the end of its segment".into());
    }
    Ok(batch)
}

/// Returns true if every readable payload block of a batch matches its checksum. Unreadable ones
/// are ignored: a torn write leaves old bytes, not unreadable ones.
pub fn is_whole(bytes: &Bytes, batch: &Batch) -> bool {
    let matches = |index, crc| {
        bytes.unreadable.contains(&index)
            || bytes.block(index).is_some_and(|block| forebay_format::checksum(block) == crc)
    };
    match batch.entries[..] {
        [Entry::Summary { crc32c, .. }] => {
            let payload = (batch.start as usize + 1) * BLOCK_BYTES..batch.end() as usize * BLOCK_BYTES;
            bytes.bytes.get(payload).is_some_and(|payload| forebay_format::checksum(payload) == crc32c)
        }
        _ => batch.data().all(|(index, entry)| match entry {
            Entry::Data { crc32c, .. } => matches(index, *crc32c),
            _ => false,
        }),
    }
}

//! Expected content of the volume: a version for each block, and the bytes of every version.
//!
//! A block's bytes follow from seed, block number and version, and begin with the last two, so that
//! a mismatch can be explained: an older version (a lost write), another block (a misdirected one),
//! or something else.

use forebay_admin::MessageId;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use forebay_nbd_client::{NbdClient, Transport};

use super::stage::Stage;
use crate::failure::Failure;
use crate::screen::bytes;

/// Bytes of a block.
pub(super) const BLOCK_BYTES: usize = 4096;
const SECTOR_BYTES: usize = 512;
/// Size of a verification read, in bytes.
const READ_BYTES: usize = 1 << 20;
/// Verification reads in flight.
const READS_IN_FLIGHT: u64 = 4;

/// A write without a reply: the block holds the old or the new version, sector by sector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct InDoubt {
    pub(super) block: u64,
    pub(super) version: u32,
}

/// The expected content of the volume.
#[derive(Debug)]
pub(super) struct Ledger {
    seed: u64,
    versions: Vec<u32>,
}

impl Ledger {
    /// Creates the ledger of a volume in which every block holds version 0.
    pub(super) fn new(seed: u64, volume_bytes: u64) -> Self {
        Self { seed, versions: vec![0; (volume_bytes / BLOCK_BYTES as u64) as usize] }
    }

    /// Returns the version that a block holds.
    pub(super) fn version(&self, block: u64) -> u32 {
        self.versions[block as usize]
    }

    /// Notes an acknowledged write.
    pub(super) fn acknowledge(&mut self, block: u64, version: u32) {
        self.versions[block as usize] = version;
    }

    /// Writes the bytes of a version of a block to `to`.
    pub(super) fn stamp(&self, block: u64, version: u32, to: &mut [u8]) {
        let mut word = mix(mix(self.seed ^ block.rotate_left(20)) ^ u64::from(version));
        for (index, bytes) in to.chunks_exact_mut(8).enumerate() {
            let value = match index {
                0 => block,
                1 => u64::from(version),
                _ => word,
            };
            bytes.copy_from_slice(&value.to_le_bytes());
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        }
    }

    /// Compares a block with its expected content; on a mismatch, describes the content found.
    pub(super) fn compare(&self, block: u64, found: &[u8]) -> Result<(), String> {
        let mut expected = [0; BLOCK_BYTES];
        self.stamp(block, self.version(block), &mut expected);
        if found == expected { Ok(()) } else { Err(self.explain(block, found)) }
    }

    fn explain(&self, block: u64, found: &[u8]) -> String {
        let word = |at: usize| {
            found
                .get(at..at + 8)
                .map_or(0, |bytes| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
        };
        let (of, version) = (word(0), word(8));
        let expected = self.version(block);
        let place = format!("byte {}: ", block * BLOCK_BYTES as u64);
        let mut whole = vec![0; BLOCK_BYTES];
        if let Ok(version) = u32::try_from(version) {
            self.stamp(of, version, &mut whole);
        }
        let what = match (found == whole, of == block) {
            (true, true) if version < u64::from(expected) => {
                format!("version {version} of the block, but {expected} was acknowledged: a lost write")
            }
            (true, true) => {
                format!("version {version} of the block, but {expected} is the newest that was written")
            }
            (true, false) => {
                format!("version {version} of block {of}, expected version {expected} of block {block}")
            }
            (false, _) if found.iter().all(|byte| *byte == 0) => {
                format!("zeroes, expected version {expected}")
            }
            (false, _) => format!("bytes that were never written, expected version {expected}"),
        };
        place + &what
    }

    /// Writes version 0 of all blocks directly into the file.
    pub(super) fn fill(&self, path: &Path, progress: &mut dyn FnMut(u64)) -> io::Result<()> {
        let mut file = File::create(path)?;
        let mut part = vec![0; READ_BYTES];
        let mut block = 0;
        for piece in self.versions.chunks(READ_BYTES / BLOCK_BYTES) {
            let part = &mut part[..piece.len() * BLOCK_BYTES];
            for (bytes, version) in part.chunks_exact_mut(BLOCK_BYTES).zip(piece) {
                self.stamp(block, *version, bytes);
                block += 1;
            }
            file.write_all(part)?;
            progress(block * BLOCK_BYTES as u64);
        }
        file.sync_all()
    }

    /// Reads the whole volume and compares every byte.
    pub(super) fn verify(&self, client: &mut NbdClient<Transport>, stage: &Stage) -> Result<(), Failure> {
        let total = (self.versions.len() * BLOCK_BYTES) as u64;
        if client.size_bytes() != total {
            let found = client.size_bytes();
            return Err(Failure::new(
                MessageId::DemoWrongData,
                format!("the volume has {found} bytes, expected {total}"),
            ));
        }
        let pieces = total.div_ceil(READ_BYTES as u64);
        let (mut sent, mut done) = (0, 0);
        let mut wrong = Vec::new();
        let mut data = Vec::new();
        while done < pieces {
            stage.go_on()?;
            while sent < pieces && sent - done < READS_IN_FLIGHT {
                let from = sent * READ_BYTES as u64;
                let len = (total - from).min(READ_BYTES as u64) as u32;
                client.send_read(sent, from, len).map_err(nbd)?;
                sent += 1;
            }
            let reply = client.recv_reply(&mut data).map_err(nbd)?;
            reply
                .result
                .map_err(|error| Failure::new(MessageId::DemoIo, format!("reading back: {error}")))?;
            let first = reply.cookie * (READ_BYTES / BLOCK_BYTES) as u64;
            for (block, found) in (first..).zip(data.chunks(BLOCK_BYTES)) {
                wrong.extend(self.compare(block, found).err());
            }
            done += 1;
            stage.at(done * READ_BYTES as u64, bytes(done * READ_BYTES as u64));
        }
        match wrong.first() {
            None => Ok(()),
            Some(first) => Err(Failure::new(
                MessageId::DemoWrongData,
                format!("{} wrong blocks; the first at {first}", wrong.len()),
            )),
        }
    }

    /// Determines the version of the blocks whose writes were not answered, and records it.
    pub(super) fn settle(
        &mut self,
        client: &mut NbdClient<Transport>,
        in_doubt: &[InDoubt],
    ) -> Result<(), Failure> {
        for InDoubt { block, version } in in_doubt.iter().copied() {
            let offset = block * BLOCK_BYTES as u64;
            let (mut found, mut old, mut new) = ([0; BLOCK_BYTES], [0; BLOCK_BYTES], [0; BLOCK_BYTES]);
            client.read_at(offset, &mut found).map_err(nbd)?;
            self.stamp(block, self.version(block), &mut old);
            self.stamp(block, version, &mut new);
            let mut sectors =
                found.chunks(SECTOR_BYTES).zip(old.chunks(SECTOR_BYTES)).zip(new.chunks(SECTOR_BYTES));
            if found == new {
                self.acknowledge(block, version);
            } else if found == old {
                continue;
            } else if sectors.all(|((found, old), new)| found == old || found == new) {
                // Partly landed, which is allowed: rewrite it, so that its content is known.
                client.write_at(offset, &new, false).map_err(nbd)?;
                self.acknowledge(block, version);
            } else {
                return Err(Failure::new(
                    MessageId::DemoWrongData,
                    format!("after the kill, {}", self.explain(block, &found)),
                ));
            }
        }
        Ok(())
    }
}

/// Converts an error of the connection.
pub(super) fn nbd(error: forebay_nbd_client::ClientError) -> Failure {
    let source = std::error::Error::source(&error).map_or(String::new(), |source| format!(": {source}"));
    Failure::new(MessageId::DemoIo, format!("{error}{source}"))
}

/// Spreads a number over 64 bits.
pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(ledger: &Ledger, block: u64, version: u32) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK_BYTES];
        ledger.stamp(block, version, &mut bytes);
        bytes
    }

    #[test]
    fn wrong_bytes_are_noticed_and_explained() {
        let mut ledger = Ledger::new(7, 1 << 20);
        ledger.acknowledge(5, 2);
        assert_eq!(ledger.compare(5, &bytes_of(&ledger, 5, 2)), Ok(()));
        let why = |found: &[u8]| ledger.compare(5, found).unwrap_err();
        assert!(why(&bytes_of(&ledger, 5, 1)).contains("a lost write"));
        assert!(why(&bytes_of(&ledger, 6, 0)).contains("of block 6"));
        assert!(why(&[0; BLOCK_BYTES]).contains("zeroes"));
        let mut torn = bytes_of(&ledger, 5, 2);
        torn[BLOCK_BYTES - 1] ^= 1;
        assert!(why(&torn).contains("never written"));
    }

    #[test]
    fn sectors_identify_block_and_version() {
        let ledger = Ledger::new(7, 1 << 20);
        let (a, b) = (bytes_of(&ledger, 5, 2), bytes_of(&ledger, 5, 3));
        assert!(a.chunks(SECTOR_BYTES).zip(b.chunks(SECTOR_BYTES)).all(|(a, b)| a != b));
    }
}

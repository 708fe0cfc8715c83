//! Contents of a sector.
//!
//! Every sector-sized piece of every write gets a unique number, and bytes that follow from the
//! number. So a sector in the wrong place, or half of one, is recognisable. Only partial writes of
//! sectors need their bytes kept.

use forebay_format::SECTOR_BYTES;
use std::rc::Rc;

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The 512 bytes of one sector at one instant.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Content {
    /// All zeroes.
    Zero,
    /// The bytes for this number.
    Tag(u64),
    /// Composed by a partial write of a sector.
    Bytes(Rc<[u8; SECTOR_BYTES]>),
}

impl Content {
    /// Writes the whole sector.
    pub fn fill(&self, to: &mut [u8]) {
        debug_assert_eq!(to.len(), SECTOR_BYTES);
        match self {
            Self::Zero => to.fill(0),
            Self::Tag(tag) => {
                let mut word = *tag;
                for bytes in to.chunks_exact_mut(8) {
                    bytes.copy_from_slice(&word.to_le_bytes());
                    word = word.wrapping_add(STEP);
                }
            }
            Self::Bytes(bytes) => to.copy_from_slice(&bytes[..]),
        }
    }

    /// Returns true if `found`, a whole sector, is this content.
    #[must_use]
    pub fn is(&self, found: &[u8]) -> bool {
        debug_assert_eq!(found.len(), SECTOR_BYTES);
        match self {
            Self::Zero => found.iter().fold(0, |sum, byte| sum | byte) == 0,
            Self::Tag(tag) => {
                let mut word = *tag;
                let mut differ = 0;
                for bytes in found.chunks_exact(8) {
                    differ |= word ^ word_of(bytes);
                    word = word.wrapping_add(STEP);
                }
                differ == 0
            }
            Self::Bytes(bytes) => bytes[..] == *found,
        }
    }

    /// Returns true if `found` equals this content from byte `from` of the sector on.
    #[must_use]
    pub fn is_part(&self, from: usize, found: &[u8]) -> bool {
        if found.len() == SECTOR_BYTES {
            return self.is(found);
        }
        let mut whole = [0; SECTOR_BYTES];
        self.fill(&mut whole);
        whole[from..from + found.len()] == *found
    }

    /// Returns this content with the bytes from `from` on replaced.
    #[must_use]
    pub fn with(&self, from: usize, bytes: &[u8]) -> Self {
        let mut whole = [0; SECTOR_BYTES];
        self.fill(&mut whole);
        whole[from..from + bytes.len()].copy_from_slice(bytes);
        if whole == [0; SECTOR_BYTES] { Self::Zero } else { Self::Bytes(Rc::new(whole)) }
    }

    /// Returns the content with these 512 bytes.
    #[must_use]
    pub fn of(bytes: &[u8; SECTOR_BYTES]) -> Self {
        let tag = Self::Tag(word_of(&bytes[..8]));
        if Self::Zero.is(bytes) {
            return Self::Zero;
        }
        if tag.is(bytes) { tag } else { Self::Bytes(Rc::new(*bytes)) }
    }

    /// Returns the content of a sector, if its bytes are recognisable by themselves.
    #[must_use]
    pub fn of_sector(bytes: &[u8]) -> Option<Self> {
        debug_assert_eq!(bytes.len(), SECTOR_BYTES);
        let tag = Self::Tag(word_of(&bytes[..8]));
        if Self::Zero.is(bytes) { Some(Self::Zero) } else { tag.is(bytes).then_some(tag) }
    }

    /// Describes these bytes for a message: by their number, if they have one.
    #[must_use]
    pub fn describe(found: &[u8]) -> String {
        if found.iter().all(|byte| *byte == 0) {
            return "zeroes".into();
        }
        if found.len() == SECTOR_BYTES {
            let tag = word_of(&found[..8]);
            if Self::Tag(tag).is(found) {
                return format!("tag {tag:#x}");
            }
        }
        let head: Vec<String> = found.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        format!("bytes {}.. (crc {:08x})", head.join(""), crc32c::crc32c(found))
    }
}

fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_matches_only_its_own_bytes() {
        let mut bytes = [0; SECTOR_BYTES];
        let contents = [Content::Zero, Content::Tag(5), Content::Tag(6), Content::Tag(5).with(3, b"x")];
        for (index, content) in contents.iter().enumerate() {
            content.fill(&mut bytes);
            for (other, candidate) in contents.iter().enumerate() {
                assert_eq!(candidate.is(&bytes), index == other);
                assert_eq!(candidate.is_part(0, &bytes[..100]), index == other);
            }
        }
        assert_eq!(Content::describe(&[0; SECTOR_BYTES]), "zeroes");
    }
}

//! Fixed-offset structures: one declaration defines the field offsets of the codec and the table
//! that the document is checked against. It also proves at compile time that the fields fill the
//! structure without gap or overlap.

use crate::error::FormatError;

/// One field of a [`Structure`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// Name, as in the document.
    pub name: &'static str,
    /// Offset in bytes from the start of the structure.
    pub offset: usize,
    /// Length in bytes.
    pub len: usize,
}

/// The layout of one on-disk structure.
#[derive(Clone, Copy, Debug)]
pub struct Structure {
    /// Name, as in the heading of the document's table.
    pub name: &'static str,
    /// Length in bytes.
    pub len: usize,
    /// Fields in order of offset.
    pub fields: &'static [Field],
}

impl Structure {
    /// Returns whether the fields follow one another without gap or overlap and end exactly at
    /// `len`.
    #[must_use]
    pub const fn tiles(&self) -> bool {
        let mut at = 0;
        let mut index = 0;
        while index < self.fields.len() {
            let field = self.fields[index];
            if field.offset != at || field.len == 0 {
                return false;
            }
            at += field.len;
            index += 1;
        }
        at == self.len
    }

    /// A field holds a value that no writer produces.
    pub(crate) fn wrong(&self, field: Field, value: u64) -> FormatError {
        FormatError::Field { structure: self.name, field: field.name, value }
    }
}

/// Declares a structure: a constant `Field` per field, and `STRUCTURE` with all of them; fails to
/// compile unless the fields tile the given length.
macro_rules! structure {
    ($title:literal, $len:expr; $($constant:ident = $name:literal, $offset:expr, $size:expr;)*) => {
        $(pub(crate) const $constant: $crate::layout::Field =
            $crate::layout::Field { name: $name, offset: $offset, len: $size };)*
        /// The layout of this structure, as documented.
        pub(crate) const STRUCTURE: $crate::layout::Structure =
            $crate::layout::Structure { name: $title, len: $len, fields: &[$($constant),*] };
        const _: () = assert!(STRUCTURE.tiles(), "fields leave a gap or overlap");
    };
}
pub(crate) use structure;

impl Field {
    pub(crate) fn put(self, to: &mut [u8], value: u64) {
        debug_assert!(self.len == 8 || value >> (self.len * 8) == 0, "{} overflows", self.name);
        to[self.offset..self.offset + self.len].copy_from_slice(&value.to_le_bytes()[..self.len]);
    }

    pub(crate) fn get(self, from: &[u8]) -> u64 {
        let mut bytes = [0; 8];
        bytes[..self.len].copy_from_slice(&from[self.offset..self.offset + self.len]);
        u64::from_le_bytes(bytes)
    }

    /// Like [`Field::get`], for a field of at most four bytes.
    pub(crate) fn get_u32(self, from: &[u8]) -> u32 {
        debug_assert!(self.len <= 4);
        self.get(from) as u32
    }

    pub(crate) fn put_bytes(self, to: &mut [u8], value: &[u8]) {
        to[self.offset..self.offset + value.len()].copy_from_slice(value);
    }

    pub(crate) fn bytes(self, from: &[u8]) -> &[u8] {
        &from[self.offset..self.offset + self.len]
    }

    /// The first bytes of the field.
    pub(crate) fn array<const N: usize>(self, from: &[u8]) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.bytes(from)[..N]);
        bytes
    }
}

/// CRC32C of `bytes` with the four bytes of `field` taken as zero.
pub(crate) fn crc_without(bytes: &[u8], field: Field) -> u32 {
    debug_assert!(field.len == 4);
    let crc = crc32c::crc32c(&bytes[..field.offset]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &bytes[field.offset + 4..])
}

/// Checks a structure's length, magic, checksum and version (`version.1` is the newest supported
/// one), in that order: the version of damaged bytes is meaningless, and a newer version keeps
/// magic, version and checksum at the same place.
pub(crate) fn check_envelope(
    structure: &Structure,
    bytes: &[u8],
    magic: (Field, &[u8]),
    (version, newest): (Field, u32),
    crc: Field,
) -> Result<(), FormatError> {
    let name = structure.name;
    let Some(bytes) = bytes.get(..structure.len) else {
        return Err(FormatError::TooShort { structure: name, needed: structure.len, found: bytes.len() });
    };
    if magic.0.bytes(bytes) != magic.1 {
        return Err(FormatError::Magic { structure: name });
    }
    let (found, computed) = (crc.get_u32(bytes), crc_without(bytes, crc));
    if found != computed {
        return Err(FormatError::Checksum { structure: name, found, computed });
    }
    match version.get_u32(bytes) {
        found if (1..=newest).contains(&found) => Ok(()),
        0 => Err(structure.wrong(version, 0)),
        found => Err(FormatError::Version { structure: name, found, supported: newest }),
    }
}

/// Checks that every byte of `fields` is zero, as writers of this version leave them.
pub(crate) fn check_zero(structure: &Structure, from: &[u8], fields: &[Field]) -> Result<(), FormatError> {
    for field in fields {
        if let Some(byte) = field.bytes(from).iter().find(|byte| **byte != 0) {
            return Err(structure.wrong(*field, u64::from(*byte)));
        }
    }
    Ok(())
}

/// The longest prefix of `text` that fits `bytes_max` bytes without splitting a character.
pub(crate) fn fitting(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

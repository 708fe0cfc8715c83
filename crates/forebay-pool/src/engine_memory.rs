//! Memory reserved for the engine, however much of the rest clients use: for headers of batches,
//! and for metadata in pieces.
//!
//! It is set aside when a pool opens and never given away, so no operation of the engine fails for
//! want of memory. An operation that finds none waits until an earlier one has ended: there always
//! is one, since only operations hold any. Pages for destage and merges come from the engine's
//! scratch memory, which is also set aside.

use forebay_format::BLOCK_BYTES;
use forebay_io::{BufId, BufPool, Span};

/// Longest piece of metadata that is read or written at once.
pub(crate) const PIECE_BYTES: usize = 1 << 20;
/// Pieces in flight: two copies of a checkpoint on each of two members.
const PIECES: u32 = 4;
/// Headers in flight: more batches wait.
const HEADERS: u32 = 256;

/// See the top of the file.
#[derive(Debug)]
pub(crate) struct Reserve {
    pieces: BufId,
    headers: BufId,
    free_pieces: Vec<u32>,
    free_headers: Vec<u32>,
}

/// A part of the reserve that an operation holds.
#[derive(Debug)]
pub(crate) enum Part {
    /// For a header.
    Header(u32),
    /// For a piece of metadata.
    Piece(u32),
}

impl Reserve {
    /// Sets the memory aside; `None` if there is none.
    pub(crate) fn new(pool: &mut BufPool) -> Option<Self> {
        Some(Self {
            pieces: pool.alloc(PIECES as usize * PIECE_BYTES)?,
            headers: pool.alloc(HEADERS as usize * BLOCK_BYTES)?,
            free_pieces: (0..PIECES).collect(),
            free_headers: (0..HEADERS).collect(),
        })
    }

    /// Memory for a header, if there is some now.
    pub(crate) fn header(&mut self) -> Option<(Part, Span)> {
        let number = self.free_headers.pop()?;
        let span = Span::new(self.headers, number * BLOCK_BYTES as u32, BLOCK_BYTES as u32);
        Some((Part::Header(number), span))
    }

    /// Memory for a piece of metadata of `len` bytes, if there is some now.
    pub(crate) fn piece(&mut self, len: usize) -> Option<(Part, Span)> {
        debug_assert!(len <= PIECE_BYTES);
        let number = self.free_pieces.pop()?;
        Some((Part::Piece(number), Span::new(self.pieces, number * PIECE_BYTES as u32, len as u32)))
    }

    /// Returns a part to the reserve.
    pub(crate) fn give_back(&mut self, part: Part) {
        match part {
            Part::Header(number) => self.free_headers.push(number),
            Part::Piece(number) => self.free_pieces.push(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_pieces_never_overlap() {
        let mut pool = BufPool::new(64 << 20);
        let mut reserve = Reserve::new(&mut pool).unwrap();
        let mut taken = Vec::new();
        while let Some(found) = reserve.piece(PIECE_BYTES) {
            taken.push(found);
        }
        while let Some(found) = reserve.header() {
            taken.push(found);
        }
        let mut places: Vec<(u32, u32, u32)> =
            taken.iter().map(|(_, span)| (span.buf.0, span.offset, span.len)).collect();
        places.sort_unstable();
        let apart = |pair: &[(u32, u32, u32)]| pair[0].0 != pair[1].0 || pair[0].1 + pair[0].2 <= pair[1].1;
        assert!(places.windows(2).all(apart));
        assert_eq!(taken.len(), (PIECES + HEADERS) as usize);
        taken.into_iter().for_each(|(part, _)| reserve.give_back(part));
        assert!(reserve.piece(1).is_some() && reserve.header().is_some());
    }
}

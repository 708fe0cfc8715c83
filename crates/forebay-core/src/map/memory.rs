//! Memory allocated by segments, without a visit to all of them each time.
//!
//! Statistics are requested every second. A visit to a segment takes a tenth of a microsecond or
//! two if it misses the processor's caches: for the 262,144 segments of 1 TiB, tens of
//! milliseconds. So each call visits [`LOOKS`] of them, in turn, and uses the last known sizes of
//! the others. In caches of up to 16 GiB, with segments of 4 MiB, it visits all, and the figure is
//! exact.

use crate::map::segment::Segment;
use alloc::vec::Vec;

/// Segments visited by one call.
const LOOKS: usize = 4096;

/// Last known sizes of the segments.
#[derive(Debug, Default)]
pub(super) struct SegmentMemory {
    /// Bytes of each, as last seen, and their sum.
    seen: Vec<u32>,
    sum: usize,
    next: usize,
}

impl SegmentMemory {
    /// Returns the bytes that these segments have allocated, and visits some of them. The first
    /// call, and the first one after their number changes, visits all.
    pub(super) fn bytes(&mut self, segments: &[Segment]) -> usize {
        let mut looks = LOOKS.min(segments.len());
        if self.seen.len() != segments.len() {
            *self = Self::default();
            self.seen.resize(segments.len(), 0);
            looks = segments.len();
        }
        for _ in 0..looks {
            let now = segments[self.next].bytes();
            let before = core::mem::replace(&mut self.seen[self.next], now as u32);
            self.sum = self.sum + now - before as usize;
            self.next = (self.next + 1) % segments.len();
        }
        self.sum + self.seen.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::segment::SegmentPhase;
    use forebay_format::StreamKind;

    #[test]
    fn memory_figure_is_exact_after_a_full_pass() {
        let mut segments = Vec::new();
        segments.resize_with(2 * LOOKS + 1, Segment::free);
        let sum = |segments: &[Segment]| segments.iter().map(Segment::bytes).sum::<usize>();
        let mut memory = SegmentMemory::default();
        let own = memory.bytes(&segments) - sum(&segments);
        let none = own + sum(&segments);
        for segment in &mut segments {
            segment.begin(SegmentPhase::Open, StreamKind::Write, (0, 0), 16);
        }
        let all = own + sum(&segments);
        let figures: Vec<usize> = (0..3).map(|_| memory.bytes(&segments)).collect();
        assert!(none < figures[0] && figures[0] < figures[1] && figures[1] < all, "{figures:?} of {all}");
        assert_eq!(figures[2], all);
        segments.truncate(10);
        assert_eq!(memory.bytes(&segments), sum(&segments) + 10 * size_of::<u32>());
    }
}

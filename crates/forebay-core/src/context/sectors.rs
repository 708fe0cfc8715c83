//! Blocks, sectors of a block, and spans of buffers.

use crate::api::Span;
use alloc::vec::Vec;
use forebay_format::BLOCK_BYTES;

/// Bytes of a block as the type used for offsets.
pub(crate) const BLOCK: u64 = BLOCK_BYTES as u64;

/// Returns the mask of the sectors that bytes `from..to` of a block touch.
pub(crate) fn sector_mask(from: u64, to: u64) -> u8 {
    debug_assert!(from < to && to <= BLOCK);
    let (first, last) = (from / 512, (to - 1) / 512);
    (0xff << first) as u8 & (0xff >> (7 - last)) as u8
}

/// Returns the mask of the sectors that bytes `from..to` of a block cover wholly.
pub(crate) fn sector_mask_inside(from: u64, to: u64) -> u8 {
    let (first, end) = (from.div_ceil(512), to / 512);
    if first >= end { 0 } else { sector_mask(first * 512, end * 512) }
}

/// Returns the runs of set bits in a sector mask, as byte ranges in the block.
pub(crate) fn sector_runs(mask: u8) -> impl Iterator<Item = (u32, u32)> {
    let mut at = 0;
    core::iter::from_fn(move || {
        while at < 8 && mask >> at & 1 == 0 {
            at += 1;
        }
        let start = at;
        while at < 8 && mask >> at & 1 == 1 {
            at += 1;
        }
        (start < at).then_some((start * 512, at * 512))
    })
}

/// Appends a span, merging it with the last one if it continues it.
pub(crate) fn push_span(spans: &mut Vec<Span>, span: Span) {
    if let Some(last) = spans.last_mut()
        && last.buf == span.buf
        && last.offset + last.len == span.offset
    {
        last.len += span.len;
        return;
    }
    spans.push(span);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sector_masks_cover_touched_or_inner() {
        assert_eq!(sector_mask(0, 4096), 0xff);
        assert_eq!(sector_mask(0, 1), 1);
        assert_eq!(sector_mask(511, 513), 3);
        assert_eq!(sector_mask_inside(511, 513), 0);
        assert_eq!(sector_mask_inside(512, 1024), 2);
        assert_eq!(sector_mask_inside(1, 1536), 6);
        let runs: Vec<_> = sector_runs(0b1001_0110).collect();
        assert_eq!(runs, vec![(512, 1536), (2048, 2560), (3584, 4096)]);
    }
}

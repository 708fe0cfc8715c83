//! Detects streams of consecutive requests among many concurrent ones.
//!
//! Each direction of a volume has a table of recent streams, with the expected offset of the next
//! request, the first offset, and the bytes of all requests so far. A request belongs to the stream
//! with the nearest expected offset, if that is within four times the request's length (at most
//! [`SLACK_BYTES_MAX`]) before or behind: clients with many requests in flight reorder neighbours.
//! Otherwise it starts a stream and replaces the least recently used one.
//!
//! A stream has *passed* a threshold once it spans that many bytes and requested at least half of
//! them: reading one place repeatedly, or skipping through a region, is no stream. Random requests
//! push each other out of the table before they line up. A lookup costs one pass over 1 KiB.

/// Streams of one direction that are tracked separately.
pub(crate) const STREAMS_MAX: usize = 128;
/// Largest distance in bytes from the expected offset at which a request still belongs to its
/// stream.
const SLACK_BYTES_MAX: u64 = 256 << 10;

/// Streams of one direction of a volume.
#[derive(Debug)]
pub(crate) struct SequentialDetector {
    /// Expected offset of the next request.
    next: [u64; STREAMS_MAX],
    first: [u64; STREAMS_MAX],
    bytes: [u64; STREAMS_MAX],
    /// When each was last used, in requests; 0: free.
    used: [u64; STREAMS_MAX],
    clock: u64,
}

impl SequentialDetector {
    pub(crate) fn new() -> Self {
        let none = [0; STREAMS_MAX];
        // No request is near the expected offset of a free entry.
        Self { next: [u64::MAX / 2; STREAMS_MAX], first: none, bytes: none, used: none, clock: 0 }
    }

    /// Records a request; true if its stream had passed `threshold` bytes before.
    pub(crate) fn note(&mut self, offset: u64, len: u64, threshold: u64) -> bool {
        self.clock += 1;
        let slack = len.saturating_mul(4).min(SLACK_BYTES_MAX);
        let nearest = (0..STREAMS_MAX).min_by_key(|at| self.next[*at].abs_diff(offset)).unwrap_or(0);
        if self.next[nearest].abs_diff(offset) > slack {
            let oldest = (0..STREAMS_MAX).min_by_key(|at| self.used[*at]).unwrap_or(0);
            (self.first[oldest], self.next[oldest]) = (offset, offset + len);
            (self.bytes[oldest], self.used[oldest]) = (len, self.clock);
            return false;
        }
        let span = self.next[nearest] - self.first[nearest];
        let passed = span >= threshold && self.bytes[nearest] >= span / 2;
        self.first[nearest] = self.first[nearest].min(offset);
        self.next[nearest] = self.next[nearest].max(offset + len);
        self.bytes[nearest] = self.bytes[nearest].saturating_add(len);
        self.used[nearest] = self.clock;
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 4096;
    const THRESHOLD: u64 = 256 << 10;

    #[test]
    fn bytes_up_to_the_threshold_do_not_count() {
        let mut sequential = SequentialDetector::new();
        let passed: Vec<bool> = (0..100).map(|at| sequential.note(at * BLOCK, BLOCK, THRESHOLD)).collect();
        assert_eq!(passed.iter().position(|passed| *passed), Some(64));
        assert!(passed[64..].iter().all(|passed| *passed));
    }

    #[test]
    fn detector_separates_128_streams() {
        let mut sequential = SequentialDetector::new();
        let mut late = 0;
        for at in 0..80 {
            for stream in 0..STREAMS_MAX as u64 {
                late += u64::from(sequential.note((stream << 30) + at * BLOCK, BLOCK, THRESHOLD));
            }
        }
        assert_eq!(late, 16 * STREAMS_MAX as u64);
    }

    #[test]
    fn swapped_neighbours_stay_in_their_stream() {
        let mut sequential = SequentialDetector::new();
        let mut passed = 0;
        for group in 0..40_u64 {
            for at in [2, 0, 3, 1] {
                passed += u32::from(sequential.note((group * 4 + at) * BLOCK, BLOCK, THRESHOLD));
            }
        }
        assert!((90..=100).contains(&passed), "{passed} of the 96 behind the threshold");
    }

    #[test]
    fn random_and_repeated_reads_form_no_stream() {
        let mut sequential = SequentialDetector::new();
        let mut seed = 1_u64;
        for _ in 0..200_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            assert!(!sequential.note((seed >> 40) * BLOCK, BLOCK, THRESHOLD));
        }
        assert!((0..1000).all(|_| !sequential.note(77 * BLOCK, BLOCK, THRESHOLD)), "one place is no stream");
    }
}

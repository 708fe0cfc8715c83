//! What a log writes for data that fits it, whatever cache it serves: `log_bounds`. The table is in
//! `docs/decisions/0042-what-a-log-writes.md`, and is the same on every machine.
//!
//! A log without headers, summaries and checkpoints, of 512 segments of 256 blocks. Pages of four
//! blocks are overwritten. Once four segments are left, the victim is the segment with the best
//! cost and benefit (`(1 - u) * age / (1 + u)`) or the emptiest one, and what counts in it is
//! moved. The rules differ in the stream to which a block is written:
//!
//! - *one*: writes and moves share a stream.
//! - *two*: writes and moves have one each, as in Forebay.
//! - *by age*: moves have three, by the time since the block was written.
//! - *by lifetime*: writes have two, by how long the block lived that they overwrite, and moves
//!   three (SepBIT: Wang and others, "Separating Data via Block Invalidation Time Inference for
//!   Write Amplification Reduction in Log-Structured Storage", FAST 2022).

#[path = "../tests/it/rig/mod.rs"]
mod rig;

use rig::{Dice, Zipf};

const SEGMENTS: usize = 512;
const SEGMENT_BLOCKS: usize = 256;
const PAGE_BLOCKS: u64 = 4;
/// Segments that hold nothing, at least.
const RESERVE: usize = 4;
/// The data is overwritten so many times in all, the first half as warm-up.
const TURNS: u64 = 14;
/// Segments of short-lived writes over which the mean time until they were emptied is taken.
const LIFETIMES: u32 = 16;

#[derive(Clone, Copy, PartialEq)]
enum Streams {
    One,
    Two,
    ByAge,
    ByLifetime,
}

#[derive(Clone, Copy, PartialEq)]
enum VictimRule {
    CostBenefit,
    Emptiest,
}

#[derive(Clone, Default)]
struct Segment {
    /// The blocks that were written to it, in order.
    blocks: Vec<u32>,
    /// How many of them count.
    live: usize,
    stream: usize,
    /// Time at which it was taken into use.
    opened: u64,
    /// Number among the segments that became full.
    full: u64,
}

struct Log {
    streams: Streams,
    rule: VictimRule,
    segments: Vec<Segment>,
    free: Vec<usize>,
    open: [Option<usize>; 6],
    /// The segment of each block, and when a client wrote it.
    place: Vec<usize>,
    written: Vec<u64>,
    /// Blocks written by clients: the clock.
    now: u64,
    moved: u64,
    filled: u64,
    /// Mean time until segments of short-lived writes were emptied.
    lifetime: u64,
    lifetimes: (u64, u32),
}

impl Log {
    fn new(blocks: usize, streams: Streams, rule: VictimRule) -> Self {
        let mut log = Self {
            streams,
            rule,
            segments: vec![Segment::default(); SEGMENTS],
            free: (0..SEGMENTS).collect(),
            open: [None; 6],
            place: vec![usize::MAX; blocks],
            written: vec![0; blocks],
            now: 0,
            moved: 0,
            filled: 0,
            lifetime: u64::MAX / 16,
            lifetimes: (0, 0),
        };
        (0..blocks).for_each(|block| log.put(block, 0));
        log
    }

    fn put(&mut self, block: usize, stream: usize) {
        let number = match self.open[stream] {
            Some(number) if self.segments[number].blocks.len() < SEGMENT_BLOCKS => number,
            full => {
                self.filled += 1;
                if let Some(full) = full {
                    self.segments[full].full = self.filled;
                }
                let number = self.free.pop().expect("the reserve is larger than what a victim holds");
                self.segments[number] = Segment { stream, opened: self.now, ..Segment::default() };
                self.open[stream] = Some(number);
                number
            }
        };
        self.segments[number].blocks.push(block as u32);
        self.segments[number].live += 1;
        self.place[block] = number;
    }

    /// A client overwrites a block.
    fn overwrite(&mut self, block: usize) {
        self.now += 1;
        self.segments[self.place[block]].live -= 1;
        let lived = self.now - std::mem::replace(&mut self.written[block], self.now);
        let stream = usize::from(self.streams == Streams::ByLifetime && lived >= self.lifetime);
        self.put(block, stream);
        while self.free.len() < RESERVE {
            self.empty_victim();
        }
    }

    fn victim(&self) -> usize {
        let is_full = |number: &usize| {
            let segment = &self.segments[*number];
            segment.blocks.len() == SEGMENT_BLOCKS && !self.open.contains(&Some(*number))
        };
        let worth = |number: &usize| {
            let segment = &self.segments[*number];
            let counts = segment.live as f64 / SEGMENT_BLOCKS as f64;
            match self.rule {
                VictimRule::Emptiest => 1.0 - counts,
                VictimRule::CostBenefit => {
                    (1.0 - counts) / (1.0 + counts) * (self.filled - segment.full + 1) as f64
                }
            }
        };
        let full = (0..SEGMENTS).filter(is_full);
        full.max_by(|a, b| worth(a).total_cmp(&worth(b))).expect("most segments are full")
    }

    fn empty_victim(&mut self) {
        let number = self.victim();
        let Segment { blocks, stream, opened, .. } = std::mem::take(&mut self.segments[number]);
        if stream == 0 {
            self.note_lifetime(self.now - opened);
        }
        let mut counts: Vec<usize> = blocks
            .into_iter()
            .map(|block| block as usize)
            .filter(|block| self.place[*block] == number)
            .collect();
        counts.sort_unstable();
        counts.dedup();
        for block in counts {
            let stream = self.stream_of_move(block, stream);
            self.put(block, stream);
            self.moved += 1;
        }
        self.free.insert(0, number);
    }

    fn note_lifetime(&mut self, lived: u64) {
        self.lifetimes = (self.lifetimes.0 + lived, self.lifetimes.1 + 1);
        if self.lifetimes.1 == LIFETIMES {
            self.lifetime = self.lifetimes.0 / u64::from(LIFETIMES);
            self.lifetimes = (0, 0);
        }
    }

    fn stream_of_move(&self, block: usize, from: usize) -> usize {
        let age = self.now - self.written[block];
        let by_age = 3 + usize::from(age >= 4 * self.lifetime) + usize::from(age >= 16 * self.lifetime);
        match self.streams {
            Streams::One => 0,
            Streams::Two => 2,
            Streams::ByAge => by_age,
            Streams::ByLifetime if from == 0 => 2,
            Streams::ByLifetime => by_age,
        }
    }
}

/// Blocks written for each that clients write.
fn amplification(share_pct: u64, skew: f64, streams: Streams, rule: VictimRule) -> f64 {
    let pages = (SEGMENTS * SEGMENT_BLOCKS) as u64 * share_pct / 100 / PAGE_BLOCKS;
    let (mut dice, zipf) = (Dice(3), Zipf::new(pages, skew));
    let mut log = Log::new((pages * PAGE_BLOCKS) as usize, streams, rule);
    let mut turn = |log: &mut Log| {
        let (moved, now) = (log.moved, log.now);
        for _ in 0..TURNS / 2 * pages {
            let page = zipf.draw(&mut dice);
            (0..PAGE_BLOCKS).for_each(|block| log.overwrite((page * PAGE_BLOCKS + block) as usize));
        }
        1.0 + (log.moved - moved) as f64 / (log.now - now) as f64
    };
    turn(&mut log);
    turn(&mut log)
}

fn main() {
    let streams = [Streams::One, Streams::Two, Streams::ByAge, Streams::ByLifetime];
    println!("| overwrites, of the log that counts | one | two | by age | by lifetime | two, emptiest |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for (name, skew) in [("uniform", 0.0), ("zipf 0.8", 0.8), ("zipf 1.1", 1.1)] {
        for share_pct in [70, 80, 87] {
            print!("| {name}, {share_pct} % |");
            for streams in streams {
                print!(" {:.2} |", amplification(share_pct, skew, streams, VictimRule::CostBenefit));
            }
            println!(" {:.2} |", amplification(share_pct, skew, Streams::Two, VictimRule::Emptiest));
        }
    }
}

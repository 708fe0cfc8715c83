//! A small mutator for runs without libFuzzer: the same seed gives the same inputs.

/// A random number generator (xorshift64*).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator from a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns the next number.
    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.word() >> 16) as usize % end }
    }
}

const EXTREMES: [u64; 12] =
    [0, 1, 7, 511, 512, 4095, 4096, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, i64::MAX as u64, u64::MAX];

/// Creates an input from one, or from two, of these.
#[must_use]
pub fn mutated(inputs: &[Vec<u8>], words: &[&str], bytes_max: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = inputs.get(random.below(inputs.len())).cloned().unwrap_or_default();
    if random.below(8) == 0 {
        let other = &inputs[random.below(inputs.len())];
        bytes.truncate(random.below(bytes.len() + 1));
        bytes.extend_from_slice(&other[random.below(other.len())..]);
    }
    for _ in 0..=random.below(6) {
        step(&mut bytes, words, random);
    }
    bytes.truncate(bytes_max);
    bytes
}

fn step(bytes: &mut Vec<u8>, words: &[&str], random: &mut Random) {
    let at = random.below(bytes.len());
    let len = bytes.len();
    match random.below(9) {
        0 if len > 0 => bytes[at] = random.word() as u8,
        1 if len > 0 => bytes[at] ^= 1 << random.below(8),
        2 => bytes.truncate(at),
        3 => {
            drop(bytes.splice(at..at, (0..random.below(16)).map(|_| random.word() as u8).collect::<Vec<_>>()))
        }
        4 => drop(bytes.drain(at..(at + random.below(64)).min(len))),
        5 => {
            let part = bytes[at..(at + random.below(200)).min(len)].to_vec();
            bytes.splice(at..at, part);
        }
        6 if !words.is_empty() => {
            let word = words[random.below(words.len())].bytes();
            bytes.splice(at..at, word);
        }
        _ if len > 0 => {
            let value = EXTREMES[random.below(EXTREMES.len())];
            let width = [1, 2, 4, 8][random.below(4)].min(len - at);
            let little = value.to_le_bytes();
            let big = value.to_be_bytes();
            let from = if random.below(2) == 0 { &little[..width] } else { &big[8 - width..] };
            bytes[at..at + width].copy_from_slice(from);
        }
        _ => bytes.push(random.word() as u8),
    }
}

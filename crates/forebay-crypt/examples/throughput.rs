//! Throughput of the cipher on one core: `cargo run --release -p forebay-crypt --example
//! throughput`.
//!
//! Our cipher and `xts-mode` alternate, measured in processor time of the thread, which load on the
//! machine hardly changes (Linux).

use std::hint::black_box;

use aes::Aes256;
use aes::cipher::{Array, KeyInit};
use forebay_crypt::FileKey;
use forebay_format::CacheUuid;

const BYTES: usize = 64 << 10;
const ROUNDS: usize = 7;
const TIMES: usize = 800;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let key: Vec<u8> = (0..64).collect();
    let ours = FileKey::parse(&key)?.cipher(CacheUuid([1; 16]));
    let half = |at: usize| Aes256::new(&Array(std::array::from_fn(|index| key[at + index])));
    let theirs = xts_mode::Xts128::new(half(0), half(32));
    let mut data = vec![7_u8; BYTES];
    println!(
        "MB in a second of processor time, {BYTES} bytes at a time in blocks of 4096: encrypt, decrypt, xts-mode encrypt, copy"
    );
    for _ in 0..ROUNDS {
        let encrypt = speed(|| ours.encrypt(1 << 20, black_box(&mut data)));
        let decrypt = speed(|| ours.decrypt(1 << 20, black_box(&mut data)));
        let other =
            speed(|| theirs.encrypt_area(black_box(&mut data), 4096, 256, xts_mode::get_tweak_default));
        let source = vec![1_u8; BYTES];
        let copy = speed(|| black_box(&mut data).copy_from_slice(black_box(&source)));
        println!("{encrypt:8.0} {decrypt:8.0} {other:8.0} {copy:8.0}");
    }
    Ok(())
}

fn speed(mut work: impl FnMut()) -> f64 {
    let began = processor_ns();
    (0..TIMES).for_each(|_| work());
    (BYTES * TIMES) as f64 * 1e3 / (processor_ns() - began)
}

/// Processor time of this thread in nanoseconds; the kernel updates it when the thread yields.
fn processor_ns() -> f64 {
    std::thread::yield_now();
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(f64::NAN)
}

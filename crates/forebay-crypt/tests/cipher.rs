//! Properties of the cipher that the simulator and the daemon rely on: places, torn writes, and
//! metadata that stays readable.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use forebay_crypt::{CacheCipher, FileKey};
use forebay_format::CacheUuid;

const BLOCK: u64 = 4096;

fn cipher() -> CacheCipher {
    let key: Vec<u8> = (0..64).collect();
    FileKey::parse(&key).unwrap().cipher(CacheUuid([5; 16]))
}

#[test]
fn only_superblocks_stay_readable() {
    let plain = vec![0x5a; 40 * BLOCK as usize];
    let mut bytes = plain.clone();
    cipher().encrypt(0, &mut bytes);
    let (superblocks, rest) = bytes.split_at(32 * BLOCK as usize);
    assert_eq!(superblocks, &plain[..superblocks.len()]);
    let mut cells: Vec<&[u8]> = rest.chunks(16).collect();
    cells.sort_unstable();
    assert!(cells.windows(2).all(|pair| pair[0] != pair[1]), "equal plaintext shows");
    cipher().decrypt(0, &mut bytes);
    assert_eq!(bytes, plain);
}

#[test]
fn ciphertext_depends_on_its_place() {
    let plain = vec![1; BLOCK as usize];
    let (mut here, mut there) = (plain.clone(), plain.clone());
    cipher().encrypt(100 * BLOCK, &mut here);
    cipher().encrypt(101 * BLOCK, &mut there);
    assert_ne!(here, there);
    cipher().decrypt(101 * BLOCK, &mut here);
    assert_ne!(here, plain);
}

#[test]
fn torn_write_decrypts_to_whole_sectors() {
    let (old, new) = (vec![1; 2 * BLOCK as usize], vec![2; 2 * BLOCK as usize]);
    let (mut before, mut after) = (old, new);
    cipher().encrypt(50 * BLOCK, &mut before);
    cipher().encrypt(50 * BLOCK, &mut after);
    let mut torn = before;
    for sector in [0, 3, 4, 9, 15] {
        torn[sector * 512..][..512].copy_from_slice(&after[sector * 512..][..512]);
    }
    cipher().decrypt(50 * BLOCK, &mut torn);
    for (sector, bytes) in torn.chunks(512).enumerate() {
        let wanted = if [0, 3, 4, 9, 15].contains(&sector) { 2 } else { 1 };
        assert!(bytes.iter().all(|byte| *byte == wanted), "sector {sector}");
    }
}

#[test]
fn pieces_of_sectors_decrypt_as_the_whole() {
    let plain: Vec<u8> = (0..3 * BLOCK).map(|index| (index / 16) as u8).collect();
    let mut encrypted = plain.clone();
    cipher().encrypt(70 * BLOCK, &mut encrypted);
    for (from, len) in [(0, 512), (512, 1024), (3584, 1024), (4096, 4096), (2048, 8192)] {
        let mut piece = encrypted[from..from + len].to_vec();
        cipher().decrypt(70 * BLOCK + from as u64, &mut piece);
        assert_eq!(piece, plain[from..from + len]);
    }
}

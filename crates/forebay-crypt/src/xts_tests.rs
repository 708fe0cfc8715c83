//! Tests against the vectors of the standard, and another implementation.

use super::*;
use proptest::prelude::*;

/// Keys and plaintext of vectors 10 to 14 of IEEE 1619-2007, annex B: XTS-AES-256, units of 512
/// bytes.
const KEYS: &str = "2718281828459045235360287471352662497757247093699959574966967627\
                    3141592653589793238462643383279502884197169399375105820974944592";
/// Number of the unit, and the first and last 16 bytes of the ciphertext.
const VECTORS: [(u64, &str, &str); 5] = [
    (0xff, "1c3b3a102f770386e4836c99e370cf9b", "c4f36ffda9fcea70b9c6e693e148c151"),
    (0xffff, "77a31251618a15e6b92d1d66dffe7b50", "a4f9e27b42af8100cb9d59cef9645803"),
    (0xff_ffff, "e387aaa58ba483afa7e8eb469778317e", "2263a1eef52dd6888c309f5a7d712826"),
    (0xffff_ffff, "bf53d2dade78e822a4d949a9bc6766b0", "4c82f335abb152c4a93411373aaa8220"),
    (0xff_ffff_ffff, "64497e5a831e4a932c09be3e5393376d", "d609d273ad5b0d59631c531f6a0a57b9"),
];
/// All of vector 10.
const VECTOR_10: &str = "1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b5d31e276f8fe4a8d66b317f9ac683f44\
     680a86ac35adfc3345befecb4bb188fd5776926c49a3095eb108fd1098baec70aaa66999a72a82f27d848b21d4a741b0\
     c5cd4d5fff9dac89aeba122961d03a757123e9870f8acf1000020887891429ca2a3e7a7d7df7b10355165c8b9a6d0a7d\
     e8b062c4500dc4cd120c0f7418dae3d0b5781c34803fa75421c790dfe1de1834f280d7667b327f6c8cd7557e12ac3a0f\
     93ec05c52e0493ef31a12d3d9260f79a289d6a379bc70c50841473d1a8cc81ec583e9645e07b8d9670655ba5bbcfecc6\
     dc3966380ad8fecb17b6ba02469a020a84e18e8f84252070c13e9f1f289be54fbc481457778f616015e1327a02b140f1\
     505eb309326d68378f8374595c849d84f4c333ec4423885143cb47bd71c5edae9be69a2ffeceb1bec9de244fbe15992b\
     11b77c040f12bd8f6a975a44a0f90c29a9abc3d4d893927284c58754cce294529f8614dcd2aba991925fedc4ae74ffac\
     6e333b93eb4aff0479da9a410e4450e0dd7ae4c6e2910900575da401fc07059f645e8b7e9bfdef33943054ff84011493\
     c27b3429eaedb4ed5376441a77ed43851ad77f16f541dfd269d50d6a5f14fb0aab1cbb4c1550be97f7ab4066193c4caa\
     773dad38014bd2092fa755c824bb5e54c4f36ffda9fcea70b9c6e693e148c151";

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |digit: u8| char::from(digit).to_digit(16).expect("a digit") as u8;
    hex.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn xts() -> Xts {
    Xts::new(&bytes(KEYS).try_into().expect("64 bytes"))
}

#[test]
fn the_vectors_of_the_standard() {
    let plain: Vec<u8> = (0..512).map(|index| index as u8).collect();
    for (unit, first, last) in VECTORS {
        let mut data = plain.clone();
        xts().encrypt(unit, 0, &mut data);
        assert_eq!((&data[..16], &data[496..]), (&bytes(first)[..], &bytes(last)[..]), "unit {unit:#x}");
        if unit == 0xff {
            assert_eq!(data, bytes(VECTOR_10));
        }
        xts().decrypt(unit, 0, &mut data);
        assert_eq!(data, plain);
    }
}

/// `xts-mode` over the same cipher.
fn other() -> xts_mode::Xts128<Aes256> {
    let keys = bytes(KEYS);
    let half = |from: usize| {
        let mut key = [0; 32];
        key.copy_from_slice(&keys[from..from + 32]);
        Aes256::new(&Array(key))
    };
    xts_mode::Xts128::new(half(0), half(32))
}

proptest! {
    #[test]
    fn xts_agrees_with_another_implementation(unit in any::<u64>(), data in proptest::collection::vec(any::<u8>(), 4096)) {
        let (mut ours, mut theirs) = (data.clone(), data.clone());
        xts().encrypt(unit, 0, &mut ours);
        other().encrypt_sector(&mut theirs, xts_mode::get_tweak_default(unit.into()));
        prop_assert_eq!(&ours, &theirs);
        xts().decrypt(unit, 0, &mut ours);
        prop_assert_eq!(&ours, &data);
    }

    #[test]
    fn part_of_a_unit_encrypts_like_the_whole(unit in any::<u64>(), from in 0..8_usize, len in 1..8_usize) {
        let plain: Vec<u8> = (0..4096).map(|index| (index * 7 / 3) as u8).collect();
        let part = from * 512..((from + len) * 512).min(4096);
        let (mut whole, mut piece) = (plain.clone(), plain[part.clone()].to_vec());
        xts().encrypt(unit, 0, &mut whole);
        xts().encrypt(unit, part.start, &mut piece);
        prop_assert_eq!(&whole[part.clone()], &piece[..]);
        xts().decrypt(unit, part.start, &mut piece);
        prop_assert_eq!(&plain[part], &piece[..]);
    }
}

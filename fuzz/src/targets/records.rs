//! The record of a failed cache.

use forebay_pool::reads_as_loss_record;

use crate::Target;

/// The bytes of the file. (The reader asserts that the record survives being written again.)
pub const LOSS: Target = Target {
    name: "loss-record",
    about: "STATE_DIR/failed-caches/UUID.json",
    run: |input| {
        let _ = reads_as_loss_record(input);
    },
    seeds: || vec![EXAMPLE.as_bytes().to_vec(), b"{}".to_vec()],
    words: &[
        "\"lost\":[",
        "\"offset_bytes\":",
        "\"bytes\":512",
        "18446744073709551615",
        "-1",
        "null",
        "1e400",
        "\\ud800",
    ],
    bytes_max: 4096,
    short_run: 20_000,
};

const EXAMPLE: &str = r#"{ "version": 1, "cache_uuid": "000102030405060708090a0b0c0d0e0f", "pool": "fast", "devices": ["/dev/x"],
"reason": "write failed", "failed_unix_s": 1700000000, "recorded_unix_s": 1700000001, "volumes": [{ "name": "db",
"uuid": "101112131415161718191a1b1c1d1e1f", "number": 3, "size_bytes": 1073741824,
"lost": [{ "offset_bytes": 4096, "bytes": 8192, "written_unix_s": 1699999999 }] }] }"#;

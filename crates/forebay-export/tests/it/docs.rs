//! `docs/use/nbd.md` and the code agree.

use forebay_export::nbd::codec::{Errno, STRING_BYTES_MAX};
use forebay_export::nbd::reply::EXTENTS_MAX;
use forebay_export::nbd::{Context, Limits};

fn page() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/use/nbd.md")).unwrap()
}

/// Formats a size for a sentence: with a space before the unit.
fn size(bytes: u32) -> String {
    if bytes.is_multiple_of(1 << 20) {
        format!("{} MiB", bytes >> 20)
    } else {
        format!("{} KiB", bytes >> 10)
    }
}

#[test]
fn the_limits_are_those_of_the_code() {
    let limits = Limits::default();
    let (payload, option) = (size(limits.payload_bytes_max), size(limits.option_bytes_max));
    let skip = size(limits.skip_bytes_max);
    for expected in [
        format!("| payload of one request | {payload},"),
        format!("| `READ` above {payload} |"),
        format!(
            "| `WRITE` above {payload} | `EINVAL` after its payload was skipped; above {skip} the connection ends |"
        ),
        format!("| export name, description, query, message | {STRING_BYTES_MAX} bytes |"),
        format!("| data of one option | {option} | skipped and refused as too big; above {skip},"),
        format!("| options in one handshake | {} |", limits.options_max),
        format!("| extents in one answer | {EXTENTS_MAX} per context |"),
    ] {
        assert!(page().contains(&expected), "docs/use/nbd.md does not say: {expected}");
    }
}

#[test]
fn contexts_and_errors_are_named() {
    for context in Context::ALL {
        let row = format!("| `{}` (id {}) |", context.name(), context.id());
        assert!(page().contains(&row), "docs/use/nbd.md does not say: {row}");
    }
    for errno in [Errno::NoSpace, Errno::Invalid, Errno::NotPermitted, Errno::Overflow, Errno::NotSupported] {
        assert!(page().contains(&format!("`{errno}`")));
    }
}

//! Small languages: addresses, sizes, durations, rules. The printed form of an accepted text must
//! be accepted again.

use std::path::Path;

use forebay_admin::size::{ByteSize, parse_duration};
use forebay_config::rules::Rule;
use forebay_export::uri::{BackingUri, ExportUri};

use crate::Target;

/// One text for all of them.
pub const TARGET: Target = Target {
    name: "words",
    about: "export and backing addresses, sizes, durations, caching rules",
    run,
    seeds,
    words: &[
        "nbd+unix://",
        "nbds://",
        "fuse:",
        "file:",
        "?socket=",
        "%2F",
        "[::1]",
        "KiB",
        "MiB",
        "min",
        "ms",
        "cache=",
        "range=",
        "client=",
        "comm=",
        "user=",
        "pid=",
        "never",
        "always",
        "10.0.0.0/8",
        "*",
        "\"",
    ],
    bytes_max: 1024,
    short_run: 30_000,
};

fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(size) = text.parse::<ByteSize>() {
        assert_eq!(size.to_string().parse::<ByteSize>(), Ok(size), "{text:?}");
    }
    let _ = parse_duration(text);
    if let Ok(uri) = text.parse::<ExportUri>() {
        let shown = uri.to_string();
        assert_eq!(shown.parse::<ExportUri>().map(|again| again.to_string()), Ok(shown), "{text:?}");
    }
    if let Ok(uri) = text.parse::<BackingUri>() {
        assert!(uri.path() != Path::new(""), "{text:?}");
    }
    if let Ok(rule) = text.parse::<Rule>() {
        let shown = rule.to_string();
        assert_eq!(shown.parse::<Rule>().map(|again| again.to_string()), Ok(shown), "{text:?}");
    }
    let _ = Rule::from_words(text.split(' '));
}

fn seeds() -> Vec<Vec<u8>> {
    [
        "nbd+unix:///db?socket=/run/nbd.sock",
        "nbd://127.0.0.1:10809/db",
        "nbds://[::1]/db",
        "fuse:/mnt/db",
        "file:/b.img",
        "/dev/sdb",
        "10GiB",
        "512M",
        "1.5TiB",
        "30s",
        "5min",
        "1h 2min",
        "2ms",
        "skip comm=\"rsync\"",
        "never direction=read range=0..1GiB",
        "cache client=10.0.0.0/8 for 5min",
        "always user=postgres",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

//! forebay.toml. An accepted file is accepted again unchanged; the error of a refused one names the
//! place.

use std::path::Path;

use forebay_config::parse;

use crate::Target;

/// The text of the file.
pub const TARGET: Target = Target {
    name: "config",
    about: "forebay.toml: parsed, checked, and its errors shown",
    run,
    seeds,
    words: &[
        "[daemon]",
        "[pool.fast]",
        "[volume.db]",
        "[[volume.db.rules]]",
        "devices = ",
        "path = ",
        "size = ",
        "backing = ",
        "exports = ",
        "mode = ",
        "\"10GiB\"",
        "\"file:/b\"",
        "\"nbd+unix:///db?socket=/s\"",
        "flush_period = ",
        "'''",
        "=",
    ],
    bytes_max: 8192,
    short_run: 8_000,
};

fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match parse(Path::new("forebay.toml"), text) {
        Ok(_) => {}
        Err(report) => assert!(!report.to_string().is_empty(), "an error without words"),
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/forebay-config/tests/config/bad");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let bad = paths.iter().filter(|path| path.extension().is_some_and(|kind| kind == "toml"));
    let mut seeds: Vec<Vec<u8>> = bad.filter_map(|path| std::fs::read(path).ok()).collect();
    seeds.push(forebay_config::docs::example().into_bytes());
    seeds
}

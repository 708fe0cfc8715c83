//! The kept corpus and a short run from a fixed seed, for every target.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use forebay_fuzz::Target;
use forebay_fuzz::mutate::{Random, mutated};

fn short(name: &str) {
    let target = Target::find(name).unwrap();
    let inputs = target.inputs().unwrap();
    assert!(!inputs.is_empty(), "{name}: nothing to begin with");
    let run = |input: &[u8], what: &str| {
        if std::panic::catch_unwind(|| (target.run)(input)).is_err() {
            let path = std::env::temp_dir().join(format!("forebay-fuzz-{name}"));
            std::fs::write(&path, input).unwrap();
            panic!("{name}: {what} fails; the input is {}: put it into fuzz/corpus/{name}", path.display());
        }
    };
    for (number, input) in inputs.iter().enumerate() {
        run(input, &format!("input {number} of seeds and corpus"));
    }
    let mut random = Random::new(1);
    for number in 0..target.short_run {
        run(&mutated(&inputs, target.words, target.bytes_max, &mut random), &format!("mutation {number}"));
    }
}

macro_rules! short_runs {
    ($($test:ident = $name:literal),* $(,)?) => {
        $(#[test]
        fn $test() {
            short($name);
        })*

        #[test]
        fn every_target_has_a_test() {
            let here = [$($name),*];
            assert!(forebay_fuzz::targets::ALL.iter().map(|target| target.name).eq(here));
        }
    };
}

short_runs! {
    nbd_server = "nbd-server",
    nbd_client = "nbd-client",
    format = "format",
    image = "image",
    fuse = "fuse",
    guest_ring = "guest-ring",
    vhost_user = "vhost-user",
    config = "config",
    words = "words",
    loss_record = "loss-record",
    trace = "trace",
    control_files = "control-files",
    api = "api",
}

//! The real program: serves a volume, is killed, and inspects a damaged cache. No root, no network,
//! one private directory per test.

use crate::world::{World, text};
use forebay_format::checkpoint::Checkpoint;
use forebay_format::checkpoint::increment::Increment;
use forebay_format::superblock::{Chain, Superblock};
use forebay_format::{BLOCK_BYTES, Geometry};
use forebay_nbd_client::{NbdClient, Transport};
use serde_json::Value;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const BLOCKS: u64 = 512;

fn forebay(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_forebay")).args(arguments).output().unwrap()
}

fn code(output: &Output) -> i32 {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!stderr.contains("panicked"), "{stderr}");
    output.status.code().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

impl World {
    fn start(&mut self) -> NbdClient<Transport> {
        let mut command = self.command("16MiB");
        command
            .args(["--set", "dirty_low_pct=80", "--set", "dirty_high_pct=90", "--set", "idle_delay=1h"])
            // Large enough to end with a summary.
            .args(["--set", "segment_size=512KiB"]);
        self.serve(command, 1);
        self.client()
    }

    /// Writes `BLOCKS` blocks, with destage off.
    fn start_and_write(&mut self) {
        self.start_and_write_some(BLOCKS);
    }

    /// As [`Self::start_and_write`], with `blocks` blocks.
    fn start_and_write_some(&mut self, blocks: u64) {
        let mut client = self.start();
        for block in 0..blocks {
            client
                .write_at(block * BLOCK_BYTES as u64, &[(block % 251) as u8 + 1; BLOCK_BYTES], false)
                .unwrap();
        }
        client.send_request(forebay_export::nbd::codec::cmd::FLUSH, 0, 1, 0, 0).unwrap();
        client.recv_reply(&mut Vec::new()).unwrap().result.unwrap();
    }

    fn check(&self) -> (i32, Value) {
        let output = forebay(&["check", "--json", text(&self.path("cache"))]);
        (code(&output), json(&output))
    }

    fn cache(&self) -> std::fs::File {
        std::fs::File::options().read(true).write(true).open(self.path("cache")).unwrap()
    }

    fn superblock(&self) -> Superblock {
        let mut block = vec![0; BLOCK_BYTES];
        self.cache().read_exact_at(&mut block, Geometry::superblock_offset(0)).unwrap();
        Superblock::decode(&block).unwrap()
    }

    /// Returns the checkpoint, and the offset of its copy 0.
    fn checkpoint(&self) -> (Checkpoint, u64) {
        let superblock = self.superblock();
        let (at, len) = superblock.checkpoint_place(0);
        let mut bytes = vec![0; len as usize];
        self.cache().read_exact_at(&mut bytes, at).unwrap();
        (superblock.read_checkpoint(&bytes).unwrap(), at)
    }

    /// Puts an increment without changes into effect, after a whole checkpoint.
    fn add_increment(&self) -> (Superblock, Vec<u8>) {
        let (mut rest, at) = self.checkpoint();
        let mut superblock = self.superblock();
        assert!(superblock.chain.is_none(), "it is whole after a start");
        let start = rest.encode().len() as u64;
        let (base, follows) = (rest.generation, rest.generation);
        rest.segments.clear();
        rest.generation += 1;
        superblock.checkpoint_generation = rest.generation;
        let increment = Increment { follows, rest, ..Increment::default() }.encode();
        superblock.chain = Some(Chain { base, blocks: (increment.len() / BLOCK_BYTES) as u32 });
        for copy in 0..2 {
            let slot = u64::from(superblock.geometry.checkpoint_slot_blocks) * BLOCK_BYTES as u64;
            self.cache().write_all_at(&increment, at + copy * slot + start).unwrap();
            let offset = Geometry::superblock_offset(copy as usize);
            self.cache().write_all_at(&superblock.encode(), offset).unwrap();
        }
        (superblock, increment)
    }

    fn damage(&self, offset: u64) {
        let mut byte = [0];
        self.cache().read_exact_at(&mut byte, offset).unwrap();
        self.cache().write_all_at(&[byte[0] ^ 0x55], offset).unwrap();
    }
}

#[test]
fn check_counts_the_log_after_a_kill() {
    let mut world = World::new();
    world.start_and_write();
    assert_eq!(code(&forebay(&["check", text(&world.path("cache"))])), 1, "a cache in use is not checked");
    world.kill();
    let (code, report) = world.check();
    assert_eq!(code, 0, "{report:#}");
    assert_eq!(report["state"], "unclean");
    assert_eq!(report["total"]["dirty_blocks"], BLOCKS);
    assert_eq!(report["volumes"][0]["name"], "vol");
    world.start();
    world.stop();
    let (code, report) = world.check();
    assert_eq!(
        (code, &report["state"], &report["total"]["dirty_blocks"]),
        (0, &"clean".into(), &BLOCKS.into())
    );
}

#[test]
fn check_locates_and_classifies_damage() {
    let mut world = World::new();
    world.start_and_write();
    world.stop();
    let good = std::fs::read(world.path("cache")).unwrap();
    let restore = |world: &World| std::fs::write(world.path("cache"), &good).unwrap();
    let (checkpoint, checkpoint_at) = world.checkpoint();
    let geometry = world.superblock().geometry;
    let (segment, entry) =
        checkpoint.segments.iter().enumerate().find(|(_, entry)| entry.summary_block > 0).unwrap();
    let slot = entry.slots.iter().position(|slot| slot as u8 == 2).unwrap();

    world.damage(geometry.segment_offset(segment as u32, slot as u32) + 4000);
    let (code, report) = world.check();
    assert_eq!((code, &report["lost"], &report["total"]["damaged_dirty_blocks"]), (1, &1.into(), &1.into()));
    let place = report["findings"][0]["where"].as_str().unwrap();
    assert!(place.starts_with(&format!("segment {segment}, slot {slot}: volume 0, byte ")), "{place}");

    let repairable = [
        ("superblock B", Geometry::superblock_offset(1) + 40),
        ("copy A", checkpoint_at + 4096),
        ("summary at block", geometry.segment_offset(segment as u32, entry.summary_block + 1) + 8),
        ("batch header at block 0", geometry.segment_offset(segment as u32, 0) + 100),
    ];
    for (place, offset) in repairable {
        restore(&world);
        world.damage(offset);
        let (code, report) = world.check();
        assert_eq!(
            (code, &report["lost"], &report["damaged"]),
            (1, &0.into(), &1.into()),
            "{place}: {report:#}"
        );
        assert!(report["findings"][0]["where"].as_str().unwrap().contains(place), "{place}: {report:#}");
        assert_eq!(report["total"]["dirty_blocks"], BLOCKS, "{place}");
    }

    // Without its summary and a header, the content of the slots is unknown.
    world.damage(geometry.segment_offset(segment as u32, entry.summary_block + 1) + 8);
    let (code, report) = world.check();
    assert_eq!(code, 1);
    assert!(report["lost"].as_u64().unwrap() > 0);
    restore(&world);
    assert_eq!(world.check().0, 0);
}

#[test]
fn inspect_shows_the_structures() {
    let mut world = World::new();
    world.start_and_write();
    world.kill();
    let cache = world.path("cache");
    let output = forebay(&["inspect", text(&cache), "--json", "--segments", "--batches"]);
    assert_eq!(code(&output), 0);
    let report = json(&output);
    assert_eq!(report["superblocks"][0]["state"], "open");
    assert_eq!(report["volumes"][0]["size_bytes"], 64 << 20);
    assert!(report["checkpoint"]["window"].as_array().unwrap().len() > 1);
    let window = report["checkpoint"]["window"][0].to_string();
    let output = forebay(&["inspect", text(&cache), "--segment", &window, "--batches"]);
    assert_eq!(code(&output), 0);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("dirty      volume 0 block ") && shown.contains(" sectors 11111111 "), "{shown}");
    assert_eq!(code(&forebay(&["inspect", text(&cache), "--segment", "99999"])), 2);
}

#[test]
fn udev_output_identifies_cache_devices() {
    let mut world = World::new();
    world.start_and_write();
    let ask = |path: &Path| {
        let output = forebay(&["inspect", "--udev", text(path)]);
        let said =
            [output.stdout.clone(), output.stderr.clone()].map(|said| String::from_utf8(said).unwrap());
        (code(&output), said)
    };
    // While a daemon has it open.
    let (code_in_use, [said, errors]) = ask(&world.path("cache"));
    world.kill();
    let report = json(&forebay(&["inspect", text(&world.path("cache")), "--json"]));
    let uuid = report["superblocks"][0]["uuid"].as_str().unwrap();
    let expected = format!(
        "ID_FS_TYPE=forebay_cache\nID_FS_USAGE=raid\nID_FS_UUID={uuid}\nID_FS_UUID_ENC={uuid}\nID_FS_VERSION=1\n"
    );
    assert_eq!((code_in_use, said, errors), (0, expected, String::new()));
    // Nothing is printed for files that are no cache.
    let nothing = (1, [String::new(), String::new()]);
    std::fs::write(world.path("short"), "short").unwrap();
    for other in ["/dev/null", "/dev/zero", "/", "/proc/self/exe"].map(PathBuf::from) {
        assert_eq!(ask(&other), nothing, "{}", other.display());
    }
    assert_eq!([ask(&world.path("short")), ask(&world.path("disk"))], [nothing.clone(), nothing]);
    let (code_absent, [_, errors]) = ask(&world.path("absent"));
    assert!(code_absent == 1 && errors.contains("absent: No such file"), "{errors}");
    let cache = world.path("cache");
    assert_eq!(code(&forebay(&["inspect", "--udev", text(&cache), text(&cache)])), 2);
    assert_eq!(code(&forebay(&["inspect", "--udev", "--json", text(&cache)])), 2);
}

#[test]
fn inspect_shows_checkpoint_chains() {
    let mut world = World::new();
    // Few enough that the window is not extended: an extension belongs to one checkpoint.
    world.start_and_write_some(64);
    world.kill();
    let cache = world.path("cache");
    let (code_before, before) = world.check();
    assert_eq!(
        (code_before, &before["base_generation"], &before["increment_blocks"]),
        (0, &Value::Null, &0.into())
    );
    let (superblock, increment) = world.add_increment();
    let (base, generation) = (superblock.image_generation(), superblock.checkpoint_generation);
    let blocks = increment.len() / BLOCK_BYTES;
    let (code_after, after) = world.check();
    assert_eq!((code_after, &after["total"]), (0, &before["total"]), "{after:#}");
    assert_eq!((&after["format_version"], &after["base_generation"]), (&4.into(), &base.into()));
    let report = json(&forebay(&["inspect", text(&cache), "--json"]));
    for shown in [&after, &report["superblocks"][0], &report["superblocks"][1]] {
        assert_eq!(shown["checkpoint_generation"], generation);
        assert_eq!((&shown["base_generation"], &shown["increment_blocks"]), (&base.into(), &blocks.into()));
    }
    let name = format!("{generation} (base {base}, {blocks} increment blocks)");
    for command in ["check", "inspect"] {
        let output = forebay(&[command, text(&cache)]);
        assert_eq!(code(&output), 0);
        let shown = String::from_utf8(output.stdout).unwrap();
        assert!(shown.contains(&format!("checkpoint {name}")), "{shown}");
    }
    // A daemon continues from it, and stops with a whole one.
    world.start();
    world.stop();
    let (code, report) = world.check();
    assert_eq!((code, &report["base_generation"], &report["state"]), (0, &Value::Null, &"clean".into()));
    assert_eq!(report["total"]["dirty_blocks"], 64);
}

#[test]
fn a_running_volume_reports_statistics() {
    let mut world = World::new();
    world.start_and_write();
    let admin = world.path("admin");
    let output = forebay(&["stats", text(&admin), "--format", "json"]);
    assert_eq!(code(&output), 0);
    let report = json(&output);
    assert_eq!((&report["writes"], &report["volume"]), (&BLOCKS.into(), &"vol".into()));
    assert!(report["write_latency_mean_us"].as_f64().unwrap() > 0.0);
    let table = forebay(&["stats", "vol", "--admin", text(&admin)]);
    assert!(String::from_utf8_lossy(&table.stdout).contains("dirty"));
    assert_eq!(code(&forebay(&["stats", "other", "--admin", text(&admin)])), 1);
    let metrics = forebay(&["stats", text(&admin), "--format", "prometheus"]);
    assert!(
        String::from_utf8_lossy(&metrics.stdout)
            .contains("forebay_writes_total{pool=\"run\",volume=\"vol\"} 512")
    );
    assert!(String::from_utf8_lossy(&metrics.stdout).contains("forebay_latency_seconds_bucket"));
    assert_eq!(report["latency"]["write"]["total"]["count"], BLOCKS);
    assert!(report["latency"]["write"]["total"]["p99_us"].as_f64().unwrap() > 0.0);
    let flashcache = forebay(&["stats", text(&admin), "--format", "flashcache"]);
    assert!(String::from_utf8_lossy(&flashcache.stdout).contains(" writes=512 "));
    assert_eq!(code(&forebay(&["stats", "other", "--admin", text(&admin), "--format", "flashcache"])), 1);
    let wrong = forebay(&["stats", text(&world.path("nbd"))]);
    assert_eq!(code(&wrong), 1);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("hint:"));
    world.stop();
    assert!(!admin.exists(), "an orderly stop leaves the admin socket behind");
}

#[test]
fn a_small_demo_succeeds_and_cleans_up() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["demo", "--seconds", "1", "--disk-size", "64MiB", "--cache-size", "32MiB", "--json"])
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    demo.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    demo.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert!(demo.wait().unwrap().success(), "{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&report["ok"], &report["verified_bytes"]), (&true.into(), &(128 << 20).into()));
    let iops = |phase: &str| report[phase]["iops"].as_f64().unwrap();
    let ratio = iops("with_cache") / iops("without_cache");
    assert!((report["iops_ratio"].as_f64().unwrap() - ratio).abs() < 1e-9, "{report:#}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn unknown_device_models_list_known_ones() {
    let run = |option: &str, model: &str| {
        let output =
            forebay(&["run", "--backing", "d", "--cache", "c", "--export", "nbd://h/v", option, model]);
        assert_eq!(code(&output), 2);
        String::from_utf8(output.stderr).unwrap()
    };
    for option in ["--emulate", "--emulate-cache"] {
        let said = run(option, "card-e");
        assert!(said.contains(option) && said.contains("hdd-7200, card-d[:SCALE], card-t[:SCALE]"), "{said}");
        assert!(run(option, "card-d:0").contains("from 1 to 1000"));
    }
    let said = run("--set", "emulate_cache=card-d");
    assert!(said.contains("--emulate-cache"), "{said}");
}

/// Writes go through a card in front of either device; at its end the server reports the card's
/// counters.
#[test]
fn a_cache_on_a_card_is_served() {
    for (option, mode) in [("--emulate-cache", "writeback"), ("--emulate", "passthrough")] {
        let mut world = World::new();
        let mut command = world.command("32MiB");
        command.args([option, "card-d:3", "--mode", mode]);
        world.serve(command, 1);
        let mut client = world.client();
        client.write_at(8192, &[7; 8192], true).unwrap();
        let mut read = [1; 12_288];
        client.read_at(4096, &mut read).unwrap();
        assert!(read == *[&[0; 4096][..], &[7; 8192]].concat());
        drop(client);
        world.stop();
        let said = world.log();
        let (_, did) = said.split_once(" as card-d:3: ").unwrap_or_else(|| panic!("{said}"));
        let written: u64 = did.split(' ').next().unwrap().parse().unwrap();
        assert!(written >= 2, "{said}");
    }
}

#[test]
fn wrong_arguments_exit_with_2_and_a_hint() {
    for arguments in [
        &["frobnicate"][..],
        &["run"],
        &["check"],
        &["demo", "--cache-size", "1MiB"],
        &["stats", "--format", "x"],
    ] {
        let output = forebay(arguments);
        assert_eq!(code(&output), 2, "{arguments:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.starts_with("forebay: "), "{stderr}");
    }
    assert_eq!(code(&forebay(&["--help"])), 0);
    assert_eq!(code(&forebay(&["--version"])), 0);
    assert_eq!(code(&forebay(&["completions", "bash"])), 0);
}

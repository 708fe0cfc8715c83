//! Black-box tests of forebay.toml: diagnostics of invalid files, generated documents, and the
//! steps from one file to another.
//!
//! `UPDATE_GOLDEN=1 cargo test -p forebay-config --test config` rewrites the expected texts: review
//! the difference.

use forebay_config::{
    Change, Checked, Config, Report, Scope, Severity, Value, diff, docs, keys, parse, schema,
};
use forebay_format::geometry::SEGMENTS_MIN;
use forebay_format::member::DATA_START_BLOCK;
use forebay_format::{BLOCK_BYTES, Geometry};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(text: &str) -> Result<Checked, Report> {
    parse(Path::new("forebay.toml"), text)
}

fn config(text: &str) -> Config {
    read(text).expect("the text of a test is right").config
}

/// Compares with a file, or writes it if requested.
fn golden(path: &Path, text: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, text).expect("the golden file can be written");
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        expected == text,
        "{} is not up to date (UPDATE_GOLDEN=1 writes it); it should be:\n{text}",
        path.display()
    );
}

#[test]
fn wrong_files_are_explained() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config/bad");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    assert!(files.len() >= 15, "only {} files", files.len());
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap();
        let report = match parse(Path::new(name), &text) {
            Err(report) => report,
            Ok(checked) => checked.warnings,
        };
        assert!(!report.is_empty(), "{} is not wrong", path.display());
        golden(&path.with_extension("txt"), &report.to_string());
    }
}

proptest! {
    /// The next start accepts the sizes that the daemon writes after a pool has grown or shrunk: a
    /// cache of any number of segments, and a further device of one segment or more.
    #[test]
    fn a_size_that_a_cache_can_have_is_right(
        made in 3_u64 << 20..2 << 30,
        segment in prop::option::of(4_u32..10),
        part in 0.0..1.0,
        odd in 0_u64..4096,
        further in 0_u64..100,
    ) {
        let segment_blocks = segment.map(|power| 1 << power);
        let Ok(geometry) = Geometry::for_device(made, segment_blocks) else { return Ok(()) };
        let all = f64::from(geometry.segments_max() - SEGMENTS_MIN);
        let segments = u64::from(SEGMENTS_MIN) + (all * part) as u64;
        let unit = geometry.segment_bytes();
        let first = geometry.segments_start_block * BLOCK_BYTES as u64 + segments * unit + odd;
        let more = DATA_START_BLOCK * BLOCK_BYTES as u64 + (1 + further) * unit + odd;
        let size = segment_blocks.map_or(String::new(), |blocks| format!("segment_size = {}", blocks * BLOCK_BYTES as u32));
        let text = format!(
            "[pool.p]\ndevices = [{{ path = \"/a\", size = \"{first}B\" }}, {{ path = \"/b\", size = {more} }}]\n{size}\n"
        );
        prop_assert!(read(&text).is_ok(), "{}\n{:?}", text, read(&text).err().map(|report| report.to_string()));
    }
}

#[test]
fn documents_are_as_the_registry_makes_them() {
    golden(&root().join("docs/use/forebay.schema.json"), &schema::text());
    golden(&root().join("docs/use/forebay.example.toml"), &docs::example());
    golden(&root().join("docs/use/settings.md"), &docs::tunables_markdown());
}

/// Readers type the names that they find in these pages.
#[test]
fn documents_name_only_settings_that_exist() {
    let counters = [
        "probation_limit_blocks",
        "sequential_bypassed_reads",
        "sequential_bypassed_writes",
        "destage_limited_by",
        "gap_filled_blocks",
    ];
    for page in ["destage.md", "destage-ordered.md", "policies.md"] {
        let text = std::fs::read_to_string(root().join("docs/use").join(page)).unwrap();
        // Every second piece between backticks is quoted.
        for quoted in text.split('`').skip(1).step_by(2) {
            let name = quoted.split(['=', ' ']).next().unwrap_or_default();
            let looks_like_one =
                name.contains('_') && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase());
            if !looks_like_one || counters.contains(&name) {
                continue;
            }
            let known = [Scope::Volume, Scope::Pool]
                .iter()
                .any(|scope| scope.tunables().iter().any(|tunable| tunable.name == name));
            assert!(known, "docs/use/{page} speaks of `{name}`, and there is no such setting");
        }
    }
}

#[test]
fn example_and_each_of_its_lines_are_valid() {
    let example = docs::example();
    let checked = read(&example).unwrap();
    assert!(checked.warnings.is_empty(), "{}", checked.warnings);
    let mut tried = 0;
    for line in example.lines().filter(|line| line.starts_with("# ") && line.contains(" = ")) {
        let with = example.replace(line, &line[2..]);
        read(&with).unwrap_or_else(|report| panic!("{line}\n{report}"));
        tried += 1;
    }
    let tunables = Scope::Pool.tunables().len() + Scope::Volume.tunables().len();
    assert!(tried > tunables, "{tried} lines");
}

#[test]
fn defaults_written_out_change_nothing() {
    let example = docs::example();
    let mut all = String::new();
    for line in example.lines() {
        let default = line.strip_prefix("# ").and_then(|line| line.split_once(" = ")).map(|(key, _)| key);
        let tunable = default.is_some_and(|key| {
            [Scope::Pool, Scope::Volume]
                .iter()
                .any(|scope| scope.tunables().iter().any(|one| one.name == key))
        });
        all += if tunable { &line[2..] } else { line };
        all += "\n";
    }
    let (plain, written) = (config(&example), config(&all));
    assert!(diff(&plain, &written).is_empty());
    assert_eq!(written.volumes["db"].settings.iter().count(), Scope::Volume.tunables().len());
    assert_eq!(plain.volumes["db"].tunables(), written.volumes["db"].tunables());
}

#[test]
fn the_schema_has_every_key() {
    let schema = schema::schema();
    for (section, keys, scope) in [
        ("daemon", keys::DAEMON, None),
        ("pool", keys::POOL, Some(Scope::Pool)),
        ("volume", keys::VOLUME, Some(Scope::Volume)),
    ] {
        let mut table = &schema["properties"][section];
        if scope.is_some() {
            table = &table["additionalProperties"];
        }
        let has = |name: &str| table["properties"][name].is_object();
        for key in keys {
            assert!(has(key.name), "{section}.{}", key.name);
        }
        for tunable in scope.map_or(&[][..], Scope::tunables) {
            assert!(has(tunable.name), "{section}.{}", tunable.name);
        }
    }
}

const TWO: &str = r#"
[pool.p]
devices = ["/dev/a", { path = "/srv/b", size = "1GiB" }]
[volume.x]
pool = "p"
backing = "/dev/x"
exports = ["nbd+unix:///x?socket=/run/x.sock"]
[[volume.x.rule]]
exe = "tar"
action = "bypass"
"#;

fn changes(old: &str, new: &str) -> (Vec<Change>, Vec<String>) {
    let found = diff(&config(old), &config(new));
    (found.changes, found.refused.iter().map(ToString::to_string).collect())
}

#[test]
fn equivalent_file_is_no_change() {
    let other = TWO
        .replace("\"/srv/b\", size = \"1GiB\"", "\"/srv/b\", size = 1073741824")
        .replace("exe = \"tar\"\naction = \"bypass\"", "action = \"bypass\"\nexe = \"tar\" # same\n")
        .replace("backing = ", "dirty_low_pct = 10\nbacking = ");
    assert_eq!(changes(TWO, &other), (vec![], vec![]));
}

#[test]
fn only_live_settings_change_on_reload() {
    let new = TWO
        .replace("backing = ", "dirty_low_pct = 20\nemulate = \"hdd-7200\"\nbacking = ")
        .replace("[volume.x]", "survivors_max_pct = 10\nio = \"psync\"\nsegment_size = \"1MiB\"\n[volume.x]");
    let (changes, refused) = changes(TWO, &new);
    let setting = |scope, name: &str, key, from, to| Change::Setting {
        scope,
        name: name.into(),
        key,
        from: Value::Count(from),
        to: Value::Count(to),
    };
    assert_eq!(
        changes,
        [
            setting(Scope::Pool, "p", "survivors_max_pct", 75, 10),
            setting(Scope::Volume, "x", "dirty_low_pct", 10, 20)
        ]
    );
    assert_eq!(
        refused,
        [
            "pool.p.io: it is auto until the pool is opened again; restart the daemon",
            "pool.p.segment_size: it was decided when the cache was made; \
             put auto back, or make a new pool and move the volumes",
            "volume.x.emulate: it is none until the volume is attached again; restart the daemon; or remove \
             the volume from the file, reload, put it back, and reload",
        ]
    );
    // The daemon reads it at the next attach.
    let (changes, refused) =
        self::changes(TWO, &TWO.replace("backing = ", "on_backing_change = \"keep-dirty\"\nbacking = "));
    assert!(matches!(&changes[..], [Change::Setting { key: "on_backing_change", .. }]), "{changes:?}");
    assert_eq!(refused, Vec::<String>::new());
}

#[test]
fn volumes_leave_first_and_pools_come_first() {
    let new = TWO.replace("pool.p", "pool.q").replace("\"p\"", "\"q\"").replace("volume.x", "volume.y");
    let (changes, refused) = changes(TWO, &new);
    let [x, y, p, q] = ["x", "y", "p", "q"].map(str::to_owned);
    assert_eq!(
        changes,
        [
            Change::VolumeRemoved { volume: x },
            Change::PoolRemoved { pool: p },
            Change::PoolAdded { pool: q },
            Change::VolumeAdded { volume: y }
        ]
    );
    assert_eq!(refused, Vec::<String>::new());
}

#[test]
fn devices_exports_sizes_and_rules_differ() {
    let new = TWO
        .replace("\"/dev/a\", ", "\"/dev/c\", ")
        .replace("1GiB", "2GiB")
        .replace("///x?", "///z?")
        .replace("exe = \"tar\"", "exe = \"rsync\"")
        .replace("pool = \"p\"", "pool = \"p\"\nsize = \"1TiB\"");
    let found = diff(&config(TWO), &config(&new));
    assert!(found.refused.is_empty());
    let [Change::PoolDevices { added, removed, resized, .. }, exports, size, rules] = &found.changes[..]
    else {
        panic!("{:?}", found.changes);
    };
    let paths = |devices: &[forebay_config::CacheSpec]| -> Vec<_> {
        devices.iter().map(|device| device.path.display().to_string()).collect()
    };
    assert_eq!(
        (paths(added), paths(removed), paths(resized)),
        (vec!["/dev/c".into()], vec!["/dev/a".into()], vec!["/srv/b".into()])
    );
    assert!(
        matches!(exports, Change::VolumeExports { added, removed, .. } if added.len() == 1 && removed.len() == 1)
    );
    assert!(
        matches!(size, Change::VolumeSize { from_bytes: None, to_bytes: Some(bytes), .. } if *bytes == 1 << 40)
    );
    assert!(matches!(rules, Change::VolumeRules { .. }));
}

#[test]
fn backing_and_socket_changes_need_restart() {
    let daemon =
        "[daemon]\nadmin_socket = \"/run/o.sock\"\nlog_level = \"warn\"\nmetrics_listen = \"[::1]:1\"\n";
    let new = format!("{daemon}{TWO}").replace("/dev/x", "/dev/y");
    let (changes, refused) = changes(TWO, &new);
    assert_eq!(changes, [Change::LogLevel, Change::MetricsListen]);
    assert!(refused[0].starts_with("daemon.admin_socket: "), "{refused:?}");
    assert!(refused[1].contains("its dirty data belongs to file:///dev/x"), "{refused:?}");
}

#[test]
fn rules_keep_their_order_and_places() {
    let checked = read(TWO).unwrap();
    let rule = &checked.config.volumes["x"].rules[0];
    assert_eq!(rule.entries[0].key, "exe");
    assert_eq!(&TWO[rule.entries[0].value_span.clone()], "\"tar\"");
    assert_eq!(&TWO[rule.entries[1].key_span.clone()], "action");
    assert_eq!(&TWO[rule.span.clone()], "[[volume.x.rule]]");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Any damage leads to a configuration or a report, and each error has a line.
    #[test]
    fn any_damage_to_a_file_is_reported(at in 0_usize..6000, len in 0_usize..40, put in "[\\[\\]={}\"'#\n a-z0-9.é\\\\]{0,6}") {
        let mut text = docs::example().replace("\n# ", "\n").replace("\n#", "\n");
        let down = |mut at: usize| { at = at.min(text.len()); while !text.is_char_boundary(at) { at -= 1 } at };
        let (start, end) = (down(at), down(at + len));
        text.replace_range(start..end, &put);
        if let Err(report) = read(&text) {
            prop_assert!(report.errors() > 0);
            prop_assert!(report.to_string().contains("forebay.toml:"));
        }
    }

    #[test]
    fn any_text_is_a_configuration_or_a_report(text in "(\\PC|\n|\t){0,80}") {
        match read(&text) {
            Ok(checked) => prop_assert!(checked.warnings.diagnostics().iter().all(|one| one.severity == Severity::Warning)),
            Err(report) => prop_assert!(report.errors() > 0),
        }
    }
}

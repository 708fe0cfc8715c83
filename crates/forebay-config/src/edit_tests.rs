//! Edits keep the surrounding text.

use super::*;
use crate::parse;
use std::path::Path;

const FILE: &str = r#"# Our cache.
[daemon]
log_level = "info"

# Fast and small.
[pool.fast]
devices = ["/dev/nvme0n1p4"] # the Optane

[volume.db]
pool = "fast"
backing = "/dev/sdb"
exports = ["nbd+unix:///db?socket=/run/db.sock"]
# agreed with the DBAs
dirty_high_pct = 60 # not more
idle_delay = "30s"

[[volume.db.rule]] # nightly
exe = "rsync"
action = "bypass"

[[volume.db.rule]]
uid = 1000
action = "pin"

[volume.web]
pool = "fast"
backing = "/dev/sdc"
exports = []
"#;

fn edit(text: &str, edit: Edit) -> Result<String, EditError> {
    let mut document: DocumentMut = text.parse().unwrap();
    edit.apply(&mut document)?;
    let text = document.to_string();
    parse(Path::new("forebay.toml"), &text).unwrap();
    Ok(text)
}

fn set(key: &str, value: &str) -> Edit {
    Edit::Set { scope: Scope::Volume, name: "db".into(), key: key.into(), value: value.into() }
}

/// Returns the lines that only one of two texts has, with the sign of a patch.
fn patch(old: &str, new: &str) -> Vec<String> {
    let gone =
        old.lines().filter(|line| !new.lines().any(|other| other == *line)).map(|line| format!("-{line}"));
    let come =
        new.lines().filter(|line| !old.lines().any(|other| other == *line)).map(|line| format!("+{line}"));
    gone.chain(come).collect()
}

#[test]
fn setting_is_changed_in_place_with_comment() {
    let new = edit(FILE, set("dirty_high_pct", "65%")).unwrap();
    assert_eq!(patch(FILE, &new), ["-dirty_high_pct = 60 # not more", "+dirty_high_pct = 65 # not more"]);
    let new = edit(FILE, set("flush_period", "5min")).unwrap();
    assert_eq!(patch(FILE, &new), ["+flush_period = \"5min\""]);
    assert!(new.contains("idle_delay = \"30s\"\nflush_period = \"5min\"\n\n[[volume.db.rule]]"), "{new}");
}

#[test]
fn changed_and_unset_settings_are_replaced() {
    let new = edit(FILE, set("idle_delay", "off")).unwrap();
    assert_eq!(patch(FILE, &new), ["-idle_delay = \"30s\"", "+idle_delay = \"off\""]);
    let unset = Edit::Unset { scope: Scope::Volume, name: "db".into(), key: "idle_delay".into() };
    assert_eq!(patch(FILE, &edit(FILE, unset).unwrap()), ["-idle_delay = \"30s\""]);
}

#[test]
fn setting_the_same_value_changes_nothing() {
    assert_eq!(edit(FILE, set("dirty_high_pct", "60")).unwrap(), FILE);
    let unset = Edit::Unset { scope: Scope::Volume, name: "web".into(), key: "mode".into() };
    assert_eq!(edit(FILE, unset).unwrap(), FILE);
}

#[test]
fn pools_and_volumes_come_and_go() {
    let added = Edit::AddVolume {
        name: "mail".into(),
        pool: "fast".into(),
        backing: "/dev/sdd".parse().unwrap(),
        exports: vec!["nbd+unix:///mail?socket=/run/mail.sock".parse().unwrap()],
        size_bytes: Some(1 << 30),
        settings: vec![("mode".into(), "writethrough".into()), ("dirty_low_pct".into(), "5".into())],
    };
    let new = edit(FILE, added.clone()).unwrap();
    let expected = "\n[volume.mail]\npool = \"fast\"\nbacking = \"file:///dev/sdd\"\n\
                    exports = [\"nbd+unix:///mail?socket=/run/mail.sock\"]\nsize = \"1GiB\"\n\
                    mode = \"writethrough\"\ndirty_low_pct = 5\n";
    assert_eq!(new, format!("{FILE}{expected}"));
    let gone = Edit::RemoveVolume { name: "mail".into() };
    assert_eq!(edit(&new, gone).unwrap(), FILE);
    assert!(matches!(edit(&new, added), Err(EditError::ThereAlready { kind: "volume", .. })));
    let devices = vec![CacheSpec { path: "/srv/c".into(), size_bytes: Some(1 << 30) }];
    let new = edit(FILE, Edit::AddPool { name: "big".into(), devices, settings: Vec::new() }).unwrap();
    assert_eq!(patch(FILE, &new), ["+[pool.big]", "+devices = [{ path = \"/srv/c\", size = \"1GiB\" }]"]);
    let new = edit(FILE, Edit::RemoveVolume { name: "db".into() }).unwrap();
    assert!(!new.contains("rule") && !new.contains("rsync") && new.contains("[volume.web]"), "{new}");
}

#[test]
fn a_file_without_sections_gets_them() {
    let devices = vec![CacheSpec { path: "/srv/c".into(), size_bytes: None }];
    let add = Edit::AddPool { name: "p".into(), devices, settings: Vec::new() };
    let section = "[pool.p]\ndevices = [\"/srv/c\"]\n";
    assert_eq!(edit("", add.clone()).unwrap(), section);
    assert_eq!(edit("# empty\n", add.clone()).unwrap(), format!("# empty\n\n{section}"));
    let commented = format!("{FILE}# the end\n");
    assert_eq!(edit(&commented, add).unwrap(), format!("{commented}\n{section}"));
}

#[test]
fn the_daemon_has_its_section_or_gets_one() {
    let daemon =
        |value: Option<&str>| Edit::Daemon { key: "metrics_listen".into(), value: value.map(str::to_owned) };
    let line = "metrics_listen = \"127.0.0.1:8661\"\n";
    for bare in ["# Mine.\n", "[pool.p]\ndevices = [\"/srv/c\"]\n# Below.\n"] {
        let new = edit(bare, daemon(Some("127.0.0.1:8661"))).unwrap();
        assert_eq!(new, format!("{bare}\n[daemon]\n{line}"));
        assert_eq!(edit(bare, daemon(None)).unwrap(), bare);
    }
    let has = "[daemon]\nlog_level = \"warn\" # not all\n\n[pool.p]\ndevices = [\"/srv/c\"]\n";
    let new = edit(has, daemon(Some("127.0.0.1:8661"))).unwrap();
    assert_eq!(new, has.replace("not all\n", &format!("not all\n{line}")));
    assert_eq!(edit(&new, daemon(None)).unwrap(), has);
}

#[test]
fn devices_exports_and_size_are_exchanged() {
    let devices = vec![
        CacheSpec { path: "/dev/nvme0n1p4".into(), size_bytes: None },
        CacheSpec { path: "/dev/nvme1n1".into(), size_bytes: Some(64 << 30) },
    ];
    let new = edit(FILE, Edit::SetDevices { pool: "fast".into(), devices }).unwrap();
    let line = r#"devices = ["/dev/nvme0n1p4", { path = "/dev/nvme1n1", size = "64GiB" }] # the Optane"#;
    assert!(new.contains(line), "{new}");
    let sized = edit(FILE, Edit::SetSize { volume: "db".into(), size_bytes: Some(1 << 40) }).unwrap();
    assert_eq!(patch(FILE, &sized), ["+size = \"1TiB\""]);
    assert_eq!(edit(&sized, Edit::SetSize { volume: "db".into(), size_bytes: None }).unwrap(), FILE);
    let moved = Edit::SetBacking { volume: "db".into(), backing: "/dev/sdz".parse().unwrap() };
    let moved = patch(FILE, &edit(FILE, moved).unwrap());
    assert!(
        moved.iter().any(|line| line.starts_with("+backing = \"") && line.contains("/dev/sdz")),
        "{moved:?}"
    );
    let exports = Edit::SetExports { volume: "db".into(), exports: Vec::new() };
    assert!(
        patch(FILE, &edit(FILE, exports).unwrap())
            .contains(&"-exports = [\"nbd+unix:///db?socket=/run/db.sock\"]".into())
    );
}

fn rule(action: &str) -> RuleTable {
    RuleTable::from_pairs([
        ("name", RuleValue::Text(action.into())),
        ("action", RuleValue::Text(action.into())),
    ])
}

fn actions(text: &str) -> Vec<String> {
    let checked = parse(Path::new("forebay.toml"), text).unwrap();
    checked.config.volumes["db"].rules.iter().map(|rule| rule.get("action").unwrap().to_string()).collect()
}

#[test]
fn rules_are_added_at_the_given_position() {
    let add = |text: &str, volume: &str, index| {
        edit(text, Edit::AddRule { volume: volume.into(), index, rule: rule("cache") })
    };
    for (index, expected) in [
        (None, ["bypass", "pin", "cache"]),
        (Some(0), ["cache", "bypass", "pin"]),
        (Some(1), ["bypass", "cache", "pin"]),
        (Some(2), ["bypass", "pin", "cache"]),
    ] {
        let new = add(FILE, "db", index).unwrap();
        assert_eq!(actions(&new), expected, "{new}");
        assert!(new.contains("[[volume.db.rule]] # nightly"), "{new}");
        let [rules, web] = ["action = \"cache\"", "[volume.web]"].map(|text| new.find(text).unwrap());
        assert!(rules < web, "the rules of a volume stay together:\n{new}");
    }
    assert!(matches!(add(FILE, "db", Some(3)), Err(EditError::NoRule { count: 2, index: 3, .. })));
    let new = add(FILE, "web", None).unwrap();
    assert!(
        new.ends_with("exports = []\n\n[[volume.web.rule]]\nname = \"cache\"\naction = \"cache\"\n"),
        "{new}"
    );
}

#[test]
fn rules_are_removed_and_replaced() {
    let remove = |text: &str, index| edit(text, Edit::RemoveRule { volume: "db".into(), index });
    let one = remove(FILE, 0).unwrap();
    assert_eq!(actions(&one), ["pin"]);
    assert!(!one.contains("rsync"));
    let none = remove(&one, 0).unwrap();
    assert!(!none.contains("rule"), "{none}");
    assert!(matches!(remove(&none, 0), Err(EditError::NoRule { count: 0, .. })));
    let replaced =
        edit(FILE, Edit::ReplaceRules { volume: "db".into(), rules: vec![rule("pin"), rule("cache")] });
    assert_eq!(actions(&replaced.unwrap()), ["pin", "cache"]);
    let inline =
        FILE.replace("exports = []", "exports = []\nrule = [{ exe = \"tar\", action = \"bypass\" }]");
    let new = edit(&inline, Edit::AddRule { volume: "web".into(), index: None, rule: rule("pin") }).unwrap();
    let checked = parse(Path::new("f"), &new).unwrap();
    assert_eq!(checked.config.volumes["web"].rules.len(), 2);
}

#[test]
fn impossible_edits_are_refused() {
    let missing =
        Edit::Set { scope: Scope::Pool, name: "slow".into(), key: "io".into(), value: "uring".into() };
    assert_eq!(edit(FILE, missing).unwrap_err().to_string(), "the file has no pool `slow`");
    let error = edit(FILE, set("dirty_hihg_pct", "3")).unwrap_err().to_string();
    assert!(error.contains("did you mean `dirty_high_pct`"), "{error}");
    let error = edit(FILE, set("dirty_high_pct", "95")).unwrap_err().to_string();
    assert!(error.contains("1 to 90"), "{error}");
    assert!(edit(FILE, Edit::RemovePool { name: "slow".into() }).is_err());
}

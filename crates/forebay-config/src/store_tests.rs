//! The file is changed completely or not at all, despite concurrent writers and failures.

use super::*;
use crate::{Scope, VolumeTunables};
use forebay_admin::MessageId;
use std::os::unix::fs::symlink;

const FILE: &str = "[pool.p]\ndevices = [\"/dev/x\"]\n\n[volume.db] # ours\npool = \"p\"\nbacking = \"/dev/y\"\nexports = []\n";

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("forebay.toml"), FILE).unwrap();
        Self { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("forebay.toml")
    }

    fn load(&self) -> ConfigFile {
        ConfigFile::load(&self.path(), &no_rules).unwrap().0
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.path()).unwrap()
    }

    /// Returns the files of the folder other than the configuration.
    fn others(&self) -> usize {
        std::fs::read_dir(self.folder.path()).unwrap().count() - 1
    }
}

fn no_rules(_: &str, _: &[super::super::RuleTable]) -> Vec<super::super::Diagnostic> {
    Vec::new()
}

fn set(key: &str, value: &str) -> Edit {
    Edit::Set { scope: Scope::Volume, name: "db".into(), key: key.into(), value: value.into() }
}

fn low(checked: &Checked) -> u32 {
    VolumeTunables::new(&checked.config.volumes["db"].settings).dirty_low_pct
}

#[test]
fn change_is_in_the_file_and_in_the_answer() {
    let place = Place::new();
    let mut file = place.load();
    let edited = file.edit(&[set("dirty_low_pct", "20"), set("mode", "writethrough")], &no_rules).unwrap();
    assert!(!edited.changed_elsewhere);
    assert_eq!(low(&edited.checked), 20);
    assert_eq!(place.text(), format!("{FILE}dirty_low_pct = 20\nmode = \"writethrough\"\n"));
    assert_eq!(file.text(), place.text());
    assert_eq!(low(&file.reload(&no_rules).unwrap()), 20);
    assert_eq!(place.others(), 0);
}

#[test]
fn permissions_stay_and_a_link_stays_a_link() {
    let place = Place::new();
    let link = place.folder.path().join("link.toml");
    symlink("forebay.toml", &link).unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o640)).unwrap();
    let before = std::fs::metadata(place.path()).unwrap();
    let (mut file, _) = ConfigFile::load(&link, &no_rules).unwrap();
    file.edit(&[set("dirty_low_pct", "20")], &no_rules).unwrap();
    let after = std::fs::metadata(place.path()).unwrap();
    assert_eq!(after.permissions().mode() & 0o7777, 0o640);
    assert_eq!((after.uid(), after.gid()), (before.uid(), before.gid()));
    assert_ne!(after.ino(), before.ino(), "a new file took the place of the old one");
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(place.text().contains("dirty_low_pct"));
}

#[test]
fn changes_go_where_the_link_leads_now() {
    let place = Place::new();
    let (link, other) = (place.folder.path().join("link.toml"), place.folder.path().join("other.toml"));
    symlink("forebay.toml", &link).unwrap();
    let (mut file, _) = ConfigFile::load(&link, &no_rules).unwrap();
    let before = place.text();
    std::fs::copy(place.path(), &other).unwrap();
    std::fs::remove_file(&link).unwrap();
    symlink("other.toml", &link).unwrap();
    file.edit(&[set("dirty_low_pct", "20")], &no_rules).unwrap();
    assert_eq!(place.text(), before);
    assert!(std::fs::read_to_string(&other).unwrap().contains("dirty_low_pct"));
}

#[test]
fn concurrent_foreign_edit_is_kept() {
    let place = Place::new();
    let mut file = place.load();
    std::fs::write(place.path(), format!("# theirs\n{FILE}dirty_high_pct = 50\n")).unwrap();
    let edited = file.edit(&[set("dirty_low_pct", "20")], &no_rules).unwrap();
    assert!(edited.changed_elsewhere);
    assert_eq!(edited.checked.config.volumes["db"].tunables().dirty_high_pct, 50);
    assert_eq!(place.text(), format!("# theirs\n{FILE}dirty_high_pct = 50\ndirty_low_pct = 20\n"));
}

#[test]
fn file_broken_by_others_is_left_unchanged() {
    let place = Place::new();
    let mut file = place.load();
    let broken = format!("{FILE}dirty_high_pct = \n");
    std::fs::write(place.path(), &broken).unwrap();
    let error = file.edit(&[set("dirty_low_pct", "20")], &no_rules).unwrap_err();
    assert!(matches!(error, StoreError::WrongMeanwhile { .. }));
    assert!(error.to_string().contains("dirty_high_pct = "), "{error}");
    assert_eq!(place.text(), broken);
    assert!(matches!(file.reload(&no_rules).unwrap_err(), StoreError::Wrong { .. }));
    assert_eq!(file.text(), FILE, "what was loaded before stays");
}

#[test]
fn contradictory_change_writes_nothing() {
    let place = Place::new();
    let mut file = place.load();
    let inode = std::fs::metadata(place.path()).unwrap().ino();
    let error = file.edit(&[set("dirty_high_pct", "50"), set("dirty_low_pct", "60")], &no_rules).unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("dirty_low_pct (60) is above dirty_high_pct (50)"), "{error}");
    let error = file.edit(&[set("no_such", "50")], &no_rules).unwrap_err();
    assert!(matches!(error, StoreError::Edit(_)), "{error}");
    // A pool that a volume still names cannot be removed.
    let error = file.edit(&[Edit::RemovePool { name: "p".into() }], &no_rules).unwrap_err();
    assert!(error.to_string().contains("there is no pool `p`"), "{error}");
    // Edits without effect write nothing.
    file.edit(&[], &no_rules).unwrap();
    assert_eq!((place.text().as_str(), std::fs::metadata(place.path()).unwrap().ino()), (FILE, inode));
    assert_eq!(file.text(), FILE);
}

#[test]
fn rules_are_checked_before_writing() {
    let place = Place::new();
    let mut file = place.load();
    let rule = crate::RuleTable::from_pairs([("action", crate::RuleValue::Text("dance".into()))]);
    let add = Edit::AddRule { volume: "db".into(), index: None, rule };
    let check = |_: &str, rules: &[crate::RuleTable]| {
        let wrong =
            rules.iter().flat_map(|rule| &rule.entries).filter(|entry| entry.value.to_string() == "dance");
        wrong
            .map(|entry| {
                crate::Diagnostic::error(MessageId::RuleValue, entry.value_span.clone(), "no such action")
            })
            .collect()
    };
    let error = file.edit(std::slice::from_ref(&add), &check).unwrap_err().to_string();
    assert!(error.contains("action = \"dance\"") && error.contains("no such action"), "{error}");
    assert_eq!(place.text(), FILE);
    file.edit(&[add], &no_rules).unwrap();
}

#[test]
fn old_file_stays_if_the_new_one_fails() {
    let place = Place::new();
    let mut file = place.load();
    // A folder in place of the new file: no user, root included, can create it.
    let beside = place.folder.path().join(format!(".forebay.toml.{}.new", std::process::id()));
    std::fs::create_dir(&beside).unwrap();
    let error = file.edit(&[set("dirty_low_pct", "20")], &no_rules).unwrap_err();
    assert!(error.to_string().contains("the configuration is as it was"), "{error}");
    assert_eq!((place.text().as_str(), file.text()), (FILE, FILE));
    std::fs::remove_dir(&beside).unwrap();
    file.edit(&[set("dirty_low_pct", "20")], &no_rules).unwrap();
    assert_eq!(place.others(), 0);
}

#[test]
fn file_in_an_unwritable_folder_stays() {
    let place = Place::new();
    let mut file = place.load();
    let folder = |mode| {
        std::fs::set_permissions(place.folder.path(), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    folder(0o555);
    if File::create(place.folder.path().join("probe")).is_ok() {
        // Root may write everywhere: an unprivileged user runs this test again.
        folder(0o755);
        return run_as_nobody("store::tests::file_in_an_unwritable_folder_stays");
    }
    let error = file.edit(&[set("dirty_low_pct", "20")], &no_rules).unwrap_err();
    folder(0o755);
    assert!(matches!(error, StoreError::Io { doing: "create", .. }), "{error}");
    assert!(error.to_string().contains("the configuration is as it was"), "{error}");
    assert_eq!((place.text().as_str(), place.others()), (FILE, 0));
}

/// Runs one test of this program as an unprivileged user.
fn run_as_nobody(test: &str) {
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65534;
    // Runs a copy: the program may lie in a folder that other users cannot enter.
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let program = place.path().join("test");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut command = std::process::Command::new(program);
    command.args(["--exact", test]).env("TMPDIR", place.path()).current_dir("/").uid(NOBODY).gid(NOBODY);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn edit_during_a_change_is_not_lost() {
    let place = Place::new();
    let mut file = place.load();
    let theirs = format!("# theirs\n{FILE}");
    // The check of the rules runs between the read and the write.
    let writes_once = |_: &str, _: &[super::super::RuleTable]| {
        if !place.text().starts_with('#') {
            std::fs::write(place.path(), &theirs).unwrap();
        }
        Vec::new()
    };
    let edited = file.edit(&[set("dirty_low_pct", "20")], &writes_once).unwrap();
    assert!(edited.changed_elsewhere);
    assert_eq!(place.text(), format!("{theirs}dirty_low_pct = 20\n"));
}

#[test]
fn endless_foreign_edits_win_and_are_named() {
    let place = Place::new();
    let mut file = place.load();
    let count = std::cell::Cell::new(0);
    let always_writes = |_: &str, _: &[super::super::RuleTable]| {
        count.set(count.get() + 1);
        std::fs::write(place.path(), format!("{FILE}# {}\n", count.get())).unwrap();
        Vec::new()
    };
    let error = file.edit(&[set("dirty_low_pct", "20")], &always_writes).unwrap_err();
    assert!(matches!(error, StoreError::Busy { .. }), "{error}");
    assert_eq!(place.text(), format!("{FILE}# {}\n", count.get()));
    assert_eq!(place.others(), 0);
}

#[test]
fn leftover_of_a_killed_daemon_is_replaced() {
    let place = Place::new();
    let beside = place.folder.path().join(format!(".forebay.toml.{}.new", std::process::id()));
    std::fs::write(&beside, "half a fi").unwrap();
    place.load().edit(&[set("dirty_low_pct", "20")], &no_rules).unwrap();
    assert_eq!(place.others(), 0);
}

#[test]
fn a_file_that_is_none_is_refused() {
    let place = Place::new();
    std::fs::write(place.path(), [b'a', 0xff]).unwrap();
    let error = ConfigFile::load(&place.path(), &no_rules).unwrap_err().to_string();
    assert!(error.contains("not UTF-8 at byte 1"), "{error}");
    let error = ConfigFile::load(&place.folder.path().join("none"), &no_rules).unwrap_err().to_string();
    assert!(error.contains("cannot read"), "{error}");
    std::fs::write(place.path(), vec![b'#'; super::super::file::BYTES_MAX + 1]).unwrap();
    assert!(matches!(ConfigFile::load(&place.path(), &no_rules), Err(StoreError::NotText { .. })));
}

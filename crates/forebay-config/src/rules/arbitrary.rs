//! Rules for property tests.

use std::time::Duration;

use proptest::option;
use proptest::prelude::*;

use super::parse::EXPIRES_MAX;
use super::pattern::Pattern;
use super::range::ByteRange;
use super::rule::{Action, Conditions, Direction, Rule};

fn action() -> impl Strategy<Value = Action> {
    prop::sample::select(vec![Action::Cache, Action::Bypass, Action::Pin, Action::WriteThrough])
}

fn direction() -> impl Strategy<Value = Direction> {
    prop::sample::select(vec![Direction::Read, Direction::Write])
}

fn range(below: u64) -> impl Strategy<Value = ByteRange> {
    let pair = (0..below, prop_oneof![3 => 0..below, 1 => Just(u64::MAX)]);
    pair.prop_map(|(a, b)| ByteRange::new(a.min(b), a.max(b)).unwrap())
}

/// Generates any rule that can be written.
pub(super) fn rule() -> impl Strategy<Value = Rule> {
    let exe = "(/[a-zé\"= *]{0,6}){0,3}/?[a-z \"=*]{1,6}".prop_filter_map("not an executable", |text| {
        let absolute = !text.contains('/') || text.starts_with(['/', '*']);
        absolute.then(|| Pattern::path(&text, false).ok())?
    });
    let cgroup = "(/[a-z. *?]{1,6}){1,3}/?".prop_filter_map("bad", |text| Pattern::path(&text, true).ok());
    let export = "\\PC{1,8}".prop_filter_map("bad glob", |text| Pattern::name(&text).ok());
    let pid = || option::of(1u32..).prop_map(|pid| pid.and_then(std::num::NonZeroU32::new));
    let conditions = (
        (pid(), pid(), option::of(any::<u32>())),
        (option::of(exe), option::of(cgroup), option::of(export)),
        (option::of(range(u64::MAX)), option::of(range(1 << 24)), option::of(direction())),
    );
    let expires = (1..EXPIRES_MAX.as_secs(), 0u32..1_000_000_000).prop_map(|(s, ns)| Duration::new(s, ns));
    let whole = (option::of("[a-zA-Z0-9_.-]{1,64}"), action(), conditions, option::of(expires));
    whole.prop_map(|(name, action, (client, names, request), expires)| {
        let (pid, tgid, uid) = client;
        let (exe, cgroup, export) = names;
        let (lba, size, direction) = request;
        let conditions = Conditions { pid, tgid, uid, exe, cgroup, export, lba, size, direction };
        Rule { name, action, conditions, expires }
    })
}

/// Size of the volume that [`small_rule`] is made for.
pub(super) const SMALL_VOLUME_BYTES: u64 = 8;

/// Generates rules in a space so small that they often match; processes are those of `WORLD` in the
/// tests.
pub(super) fn small_rule() -> impl Strategy<Value = Rule> {
    let one_of = |words: &[&'static str]| {
        let words = words.to_vec();
        prop_oneof![2 => Just(String::new()), 1 => prop::sample::select(words).prop_map(str::to_owned)]
    };
    let client = (
        one_of(&["pid=10", "pid=11", "pid=20"]),
        one_of(&["tgid=10", "tgid=20"]),
        one_of(&["uid=0", "uid=5"]),
        one_of(&["exe=rsync", "exe=rs*", "exe=/bin/rsync", "exe=/*/rsync", "exe=/bin/*", "exe=shy"]),
        one_of(&["cgroup=/a", "cgroup=/a/", "cgroup=/a/*", "cgroup=/b", "cgroup=/"]),
        one_of(&["export=db", "export=d*", "export=vm"]),
    );
    let request = (
        option::of(range(SMALL_VOLUME_BYTES)),
        option::of(range(SMALL_VOLUME_BYTES + 1)),
        one_of(&["direction=read", "direction=write"]),
    );
    (action(), client, request).prop_map(|(action, client, (lba, size, direction))| {
        let (pid, tgid, uid, exe, cgroup, export) = client;
        let lba = lba.map(|lba| format!("lba={lba}")).unwrap_or_default();
        let size = size.map(|size| format!("size={size}")).unwrap_or_default();
        let words = [action.to_string(), pid, tgid, uid, exe, cgroup, export, lba, size, direction];
        Rule::from_words(words.iter().map(String::as_str).filter(|word| !word.is_empty())).unwrap()
    })
}

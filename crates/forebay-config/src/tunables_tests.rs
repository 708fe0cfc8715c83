//! The registry is complete: names, defaults, and values that read back as printed.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

#[test]
fn defaults_are_within_their_ranges() {
    for tunable in all() {
        let default = (tunable.default)();
        assert_eq!(tunable.kind.parse(&default.to_string()), Ok(default), "{}", tunable.name);
    }
    assert_eq!(VolumeTunables::new(&Settings::new(Scope::Volume)), VolumeTunables::default());
    assert_eq!(PoolTunables::new(&Settings::new(Scope::Pool)), PoolTunables::default());
}

#[test]
fn names_are_unique_and_help_is_one_line() {
    let mut seen = BTreeSet::new();
    for tunable in all() {
        assert!(seen.insert(tunable.name), "{}", tunable.name);
        assert!(
            tunable
                .name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'_' || byte.is_ascii_digit())
        );
        assert!(!tunable.help.is_empty() && !tunable.help.contains('\n') && !tunable.help.ends_with('.'));
    }
}

#[test]
fn name_of_the_other_scope_is_refused() {
    let mut volume = Settings::new(Scope::Volume);
    let error = volume.set("reclaim_policy", "lru").unwrap_err().to_string();
    assert!(error.contains("belongs to a pool"), "{error}");
    let error = volume.set("dirty_hihg_pct", "3").unwrap_err().to_string();
    assert!(error.contains("did you mean `dirty_high_pct`?"), "{error}");
    assert_eq!(volume, Settings::new(Scope::Volume));
}

#[test]
fn names_of_flashcache_lead_to_their_page() {
    for name in FLASHCACHE {
        assert!(all().all(|tunable| tunable.name != *name), "{name} is a tunable");
        let error = Settings::new(Scope::Volume).set(name, "20").unwrap_err().to_string();
        assert!(error.contains("forebay help from-flashcache"), "{error}");
    }
}

/// Generates any value of a kind, and its text in the limits.
fn any_value(kind: ValueKind) -> BoxedStrategy<Value> {
    match kind {
        ValueKind::Choice(choices) => {
            proptest::sample::select(choices).prop_map(|c| Value::Choice(c.name)).boxed()
        }
        ValueKind::Percent { min, max } | ValueKind::Count { min, max, .. } => {
            (min..=max).prop_map(Value::Count).boxed()
        }
        ValueKind::Size { min, max, power_of_two: true, .. } => {
            (min.ilog2()..=max.ilog2()).prop_map(|power| Value::Size(ByteSize(1 << power))).boxed()
        }
        ValueKind::Size { min, max, .. } => {
            (min..=max).prop_map(|bytes| Value::Size(ByteSize(bytes))).boxed()
        }
        ValueKind::Device => proptest::string::string_regex("none|hdd-7200|card-[dt](:[1-9][0-9]{0,2})?")
            .unwrap()
            .prop_map(|text| ValueKind::Device.parse(&text).unwrap())
            .boxed(),
        ValueKind::Key => {
            proptest::string::string_regex("/[a-zA-Z0-9/._-]{0,20}|credential:[a-z][a-z0-9._-]{0,9}")
                .unwrap()
                .prop_map(|text| Value::Key(text.parse().unwrap()))
                .boxed()
        }
        ValueKind::Endurance { rating } => {
            let texts = if rating {
                "[1-9][0-9]{0,12}(TB|B|KiB)|[1-9]DWPD/[1-9].5y"
            } else {
                "[1-9][0-9]{0,4}GB|0.[0-9]5DWPD|[1-9]y"
            };
            proptest::string::string_regex(texts)
                .unwrap()
                .prop_filter_map("too large", move |text| kind.parse(&text).ok())
                .boxed()
        }
        ValueKind::Rate => any::<u64>().prop_map(|bytes| Value::Size(ByteSize(bytes))).boxed(),
        ValueKind::Duration { min, max, off } => {
            let least = (min.as_nanos() as u64).max(u64::from(off));
            (least..=max.as_nanos() as u64).prop_map(|ns| Value::Duration(Duration::from_nanos(ns))).boxed()
        }
    }
}

fn any_tunable() -> impl Strategy<Value = &'static Tunable> {
    proptest::sample::select(all().collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn printed_value_reads_back(
        (tunable, value) in any_tunable().prop_flat_map(|tunable| (Just(tunable), any_value(tunable.kind)))
    ) {
        prop_assert_eq!(tunable.kind.parse(&value.to_string()), Ok(value));
    }

    #[test]
    fn any_text_is_a_valid_value_or_an_error(tunable in any_tunable(), text in "\\PC{0,20}|[0-9]{1,22}[a-zA-Z%/]{0,4}") {
        if let Ok(value) = tunable.kind.parse(&text) {
            prop_assert_eq!(tunable.kind.parse(&value.to_string()), Ok(value));
        }
        let mut settings = Settings::new(tunable.scope);
        if settings.set(tunable.name, &text).is_ok() {
            // The typed structure accepts every value that the registry accepts.
            match tunable.scope {
                Scope::Pool => drop(PoolTunables::new(&settings)),
                Scope::Volume => drop(VolumeTunables::new(&settings)),
            }
        }
    }
}

//! Wrong cache devices: refused, or harmless, as far as detectable.

use forebay_sim::PlantedBug;
use forebay_sim::hostile::{Hostility, Outcome, run_hostile};

#[test]
fn hostile_devices_serve_no_wrong_data() {
    let report = run_hostile(1, 60, None, &mut |_| {});
    assert!(report.violations.is_empty(), "{:#?}", report.violations);
    for (hostility, name) in Hostility::ALL {
        let all: u64 = Outcome::ALL.iter().map(|(outcome, _)| report.count(hostility, *outcome)).sum();
        assert!(all >= 30, "{name}: {all} in all");
    }
    // The detectable cases have occurred.
    assert!(report.count(Hostility::Swapped, Outcome::Refused) > 0);
    assert!(report.count(Hostility::HalfFormatted, Outcome::Refused) > 0);
    assert!(report.count(Hostility::LyingFlush, Outcome::Refused) > 0);
    assert_eq!(report.count(Hostility::RottenMetadata, Outcome::Right), 0);
    let again = run_hostile(1, 3, None, &mut |_| {});
    assert_eq!(again.outcomes, run_hostile(1, 3, None, &mut |_| {}).outcomes);
}

#[test]
fn earlier_use_of_a_segment_is_not_believed() {
    let report = run_hostile(1, 40, Some(PlantedBug::BelieveEarlierUse), &mut |_| {});
    let (seed, what) = report.violations.first().expect("the planted bug is noticed");
    println!("believe-earlier-use: {} of 40 seeds, first {seed}: {what}", report.violations.len());
    assert!(
        report.violations.iter().all(|(_, what)| what.starts_with("LostWrite")),
        "{:#?}",
        report.violations
    );
}

#[test]
fn older_copy_is_refused_by_outside_record() {
    let report = run_hostile(1, 20, None, &mut |_| {});
    assert!(report.count(Hostility::OlderAfterCrash, Outcome::Refused) > 20, "{:#?}", report.outcomes);
    assert!(report.count(Hostility::OlderAfterStop, Outcome::Refused) > 10, "{:#?}", report.outcomes);
    let report = run_hostile(1, 20, Some(PlantedBug::BelieveOlderCopy), &mut |_| {});
    let (seed, what) = report.violations.first().expect("the planted bug is noticed");
    println!("believe-older-copy: {} of 20 seeds, first {seed}: {what}", report.violations.len());
    let of_copies = |(_, what): &(u64, String)| what.starts_with("Older") || what.starts_with("StaleMember");
    assert!(report.violations.iter().all(of_copies), "{:#?}", report.violations);
    let alone = report.violations.iter().filter(|(_, what)| what.starts_with("OlderMemberAlone"));
    assert!(alone.count() > 0, "{:#?}", report.violations);
}

//! Wrong members of a mirrored cache: older copies of themselves, members of another cache, a
//! member that was failed out and is found alone.
//!
//! Two runs of a seed supply the devices: one in which both members stay, and one in which a member
//! is failed out and the other one continues alone.

use super::{Hostility, States, crash, cut, pick, plan_of, run, two};
use crate::disks::{MemberNotes, Moment, Snapshot, device_of};
use crate::plan::Plan;
use crate::rng::Rng;
use crate::start::blank_member;
use forebay_core::CacheMark;
use forebay_format::CacheUuid;
use forebay_format::checkpoint::Mode;
use std::rc::Rc;

/// A case and its devices.
pub(super) type Case = (Hostility, Snapshot);

/// Returns the plan of a seed with a mirrored cache in write-back mode.
pub(super) fn mirrored_plan(seed: u64, fails: Option<(u64, usize)>) -> Plan {
    let plan = plan_of(seed);
    let failures = fails.map(|(at, member)| (at, member, None)).into_iter().collect();
    let mut plan = plan.with_members(failures);
    plan.volumes.iter_mut().for_each(|volume| volume.mode = Mode::Writeback);
    plan
}

/// Returns the cases of a seed.
///
/// # Errors
/// The engine violates a rule in a run without wrong devices.
pub(super) fn cases(seed: u64, rng: &mut Rng) -> Result<(Rc<Plan>, Vec<Case>), String> {
    let plan = Rc::new(mirrored_plan(seed, None));
    let whole = run(&plan, false)?;
    let other = Plan { seed: !seed, uuid: CacheUuid([0xB; 16]), identity: 9, ..Plan::clone(&plan) };
    let others = run(&Rc::new(other), false)?;
    let mut cases = Vec::new();
    for _ in 0..3 {
        older_members(&plan, &whole, rng, &mut cases);
        if let (Some(now), Some(foreign)) = (pick(&whole.moments, rng), pick(&others.moments, rng)) {
            let member = rng.below(2) as usize;
            let mut snapshot = crash(now, rng);
            let foreign = crash(foreign, rng).disks.devices[device_of(&plan, member)].clone();
            snapshot.disks.devices[device_of(&plan, member)] = foreign;
            cases.push((Hostility::ForeignMember, snapshot));
        }
    }
    let member = rng.below(2) as usize;
    let failing = Rc::new(mirrored_plan(seed, Some((rng.below(u64::from(plan.requests)), member))));
    let alone = run(&failing, false)?;
    for _ in 0..3 {
        let gone_on = alone.moments.iter().filter(|moment| is_noted(moment));
        let gone_on: Vec<Moment> = gone_on.cloned().collect();
        let Some(now) = pick(&gone_on, rng) else { break };
        // The member that was failed out is found alone, on a host that has lost its notes.
        let mut snapshot = cut(now, rng);
        snapshot.disks.devices[device_of(&plan, 1 - member)] = blank_member(&plan);
        snapshot.disks.member_notes = Some(MemberNotes::default());
        cases.push((Hostility::StaleMemberAlone, snapshot));
        // Both are there, and the notes are lost: the other one's superblock has them.
        let mut snapshot = crash(now, rng);
        snapshot.disks.member_notes = Some(MemberNotes::default());
        cases.push((Hostility::NotesLost, snapshot));
    }
    Ok((plan, cases))
}

fn is_noted(moment: &Moment) -> bool {
    moment.disks.member_notes.as_ref().is_some_and(|notes| !notes.noted.is_empty())
}

/// Cases in which one or both members have a state of an earlier crash.
fn older_members(plan: &Plan, states: &States, rng: &mut Rng, cases: &mut Vec<Case>) {
    let Some((old, new)) = two(&states.moments, rng) else { return };
    let member = rng.below(2) as usize;
    let (at, other) = (device_of(plan, member), device_of(plan, 1 - member));
    let old = crash(old, rng).disks.devices;
    let mut snapshot = cut(new, rng);
    snapshot.disks.devices[at] = old[at].clone();
    let (mut alone, mut both) = (snapshot.clone(), snapshot.clone());
    cases.push((Hostility::OlderMember, snapshot));
    alone.disks.devices[other] = blank_member(plan);
    cases.push((Hostility::OlderMemberAlone, alone));
    both.disks.devices[other] = old[other].clone();
    cases.push((Hostility::OlderMembers, both.clone()));
    both.disks.known = CacheMark::default();
    cases.push((Hostility::OlderMembersUnrecorded, both));
}

//! Simulated machines of which some are faulty, and who is named.

use proptest::prelude::*;

use super::*;

/// A fault of a simulated machine. All of its groups show it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Faulty {
    /// It changes the numbers of its group, in each as it happens.
    Bits,
    /// It answers other bits than the others of its group.
    OwnBits,
    NotFinite,
    Crashes,
    /// The others wait for it, and say so.
    Silent,
    /// It is not there, so that nobody of its group is asked.
    Away,
    /// Nobody can talk to it.
    Apart,
}

const FAULTS: [Faulty; 7] = [
    Faulty::Bits,
    Faulty::OwnBits,
    Faulty::NotFinite,
    Faulty::Crashes,
    Faulty::Silent,
    Faulty::Away,
    Faulty::Apart,
];

fn names(machines: u32) -> Vec<String> {
    (0..machines).map(|it| format!("n{it}")).collect()
}

fn replayed(test: GroupTest, faulty: &[(u32, Faulty)]) -> Vec<ReplayedGroup> {
    let mut groups = vec![];
    for round in ReplayRound::ALL {
        for group in 0..test.groups() {
            let members = test.members(round, group);
            let here: Vec<_> = faulty
                .iter()
                .filter(|(machine, _)| members.contains(machine))
                .collect();
            let has = |wanted: Faulty| here.iter().any(|(_, it)| *it == wanted);
            let end = |machine: u32| {
                let own = here.iter().find(|(it, _)| *it == machine).map(|it| it.1);
                match own {
                    Some(Faulty::NotFinite) => ReplayEnd::NotFinite,
                    Some(Faulty::Crashes) => ReplayEnd::Failed("its process has ended".to_owned()),
                    Some(Faulty::Silent | Faulty::Away) => ReplayEnd::Silent,
                    _ if has(Faulty::NotFinite) => ReplayEnd::NotFinite,
                    _ if has(Faulty::Crashes) || has(Faulty::Silent) => {
                        ReplayEnd::Failed("rank 0 is missing".to_owned())
                    }
                    Some(Faulty::OwnBits) => ReplayEnd::Bits(format!("own of {machine}")),
                    _ if has(Faulty::Bits) => ReplayEnd::Bits(format!("{round:?} {group}")),
                    _ => ReplayEnd::Bits("right".to_owned()),
                }
            };
            let away = has(Faulty::Away);
            let asked = members.iter().copied();
            let asked = asked
                .filter(|it| !away || here.contains(&&(*it, Faulty::Away)))
                .collect::<Vec<_>>();
            let ends: Vec<_> = asked.into_iter().map(|it| (it, end(it))).collect();
            let apart = has(Faulty::Apart).then(|| "it is not formed".to_owned());
            groups.push(ReplayedGroup {
                round,
                group,
                ends: if apart.is_some() { vec![] } else { ends },
                apart,
            });
        }
    }
    groups
}

/// SEMANTICS 209.
#[test]
fn the_one_faulty_machine_is_named_whatever_its_fault() {
    for machines in 4..=32 {
        let test = GroupTest::among(machines, 8).unwrap();
        let names = names(machines);
        for bad in 0..machines {
            for fault in FAULTS {
                let groups = replayed(test, &[(bad, fault)]);
                let judged = test.judge(&names, &groups, Some("right"));
                assert_eq!(judged.verdict, ReplayVerdict::Culprit(bad), "{fault:?}");
                let failed = judged.faults.iter().flatten().count();
                assert_eq!(failed, 2, "one group of each round");
            }
        }
        let groups = replayed(test, &[]);
        let judged = test.judge(&names, &groups, Some("right"));
        assert_eq!(judged.verdict, ReplayVerdict::Unseen);
        assert!(judged.faults.iter().all(Option::is_none));
    }
}

/// SEMANTICS 209.
#[test]
fn whoever_asks_may_be_the_faulty_one() {
    let test = GroupTest::among(8, 8).unwrap();
    let groups = replayed(test, &[(0, Faulty::Bits)]);
    for reference in [None, Some("wrong")] {
        let judged = test.judge(&names(8), &groups, reference);
        assert_eq!(judged.verdict, ReplayVerdict::Culprit(0));
    }
    // Of four, as many groups are wrong as right: the reference decides.
    let test = GroupTest::among(4, 8).unwrap();
    let mut groups = replayed(test, &[(3, Faulty::Bits)]);
    for it in &mut groups {
        for (_, end) in &mut it.ends {
            if *end != ReplayEnd::Bits("right".to_owned()) {
                *end = ReplayEnd::Bits("wrong".to_owned());
            }
        }
    }
    let judged = test.judge(&names(4), &groups, Some("right"));
    assert_eq!(judged.verdict, ReplayVerdict::Culprit(3));
    let judged = test.judge(&names(4), &groups, None);
    assert_eq!(judged.verdict.suspects(), [0, 1, 2, 3], "nobody knows");
}

/// SEMANTICS 209.
#[test]
fn why_a_group_has_failed_is_told_by_the_names_of_its_machines() {
    let test = GroupTest::among(4, 8).unwrap();
    let told = |fault| {
        let groups = replayed(test, &[(2, fault)]);
        let judged = test.judge(&names(4), &groups, Some("right"));
        judged.faults.into_iter().flatten().next().unwrap()
    };
    assert_eq!(
        FAULTS.map(told),
        [
            "it has come to bits Neighbours 1, and others to right",
            "its nodes have come to different bits",
            "its nodes have come to a number that is not finite",
            "n2: its process has ended",
            "n2 has not answered in time",
            "n2 has not answered in time",
            "it is not formed",
        ]
    );
}

proptest! {
    /// SEMANTICS 209. Of two faulty machines both are suspected, and nobody who shares no failing group of both rounds.
    #[test]
    fn of_two_faulty_machines_neither_is_left_out(
        machines in 4..=40_u32,
        at in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        faults in (0..FAULTS.len(), 0..FAULTS.len()),
    ) {
        let test = GroupTest::among(machines, 8).unwrap();
        let one = at.0.index(machines as usize) as u32;
        let other = at.1.index(machines as usize) as u32;
        prop_assume!(one != other);
        let faulty = [(one, FAULTS[faults.0]), (other, FAULTS[faults.1])];
        let groups = replayed(test, &faulty);
        let judged = test.judge(&names(machines), &groups, Some("right"));
        let suspects = judged.verdict.suspects();
        prop_assert!(suspects.contains(&one) && suspects.contains(&other), "{:?}", judged);
        let bad = |round, machine: u32| {
            let of = |it: u32| test.group_of(round, it);
            [one, other].iter().any(|it| of(*it) == of(machine))
        };
        let all = (0..machines).filter(|it| ReplayRound::ALL.iter().all(|round| bad(*round, *it)));
        prop_assert_eq!(suspects, all.collect::<Vec<_>>());
    }
}

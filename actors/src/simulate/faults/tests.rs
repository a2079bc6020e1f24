//! Properties of every run under faults, and predictions for a long one.

use std::path::Path;

use proptest::prelude::*;

use super::sums::RunSums;
use super::*;
use crate::recipe::Source;

fn scenario(more: &str) -> FaultScenario {
    let text = format!("[simulation]\nname = \"long\"\ncards = 9600\ndays = 30\n{more}");
    FaultScenario::read(&Source::new(Path::new("a.toml"), &text)).expect("it is a scenario")
}

fn sums(scenario: &FaultScenario, policy: &FaultPolicy, seed: u64) -> RunSums {
    JobRun::new(scenario, &scenario.classes(), policy, seed).run()
}

fn all_switches() -> FaultPolicy {
    let last = FaultPolicy::ladder().pop();
    last.expect("there are policies")
}

/// Small jobs on bad machines, with any switches.
fn any_run() -> impl Strategy<Value = (FaultScenario, FaultPolicy, u64)> {
    let sizes = (1u32..40, 0.5f64..20.0, 0.0f64..0.4, 0u32..12);
    let times = (1.0f64..120.0, 0.0f64..30.0, 1.0f64..3600.0, 0.0f64..40.0);
    let switches = any::<[bool; 4]>();
    (sizes, times, switches, any::<u64>()).prop_map(|(sizes, times, switches, seed)| {
        let mut scenario = scenario("");
        scenario.simulation.cards = sizes.0 * 64;
        scenario.simulation.days = sizes.1;
        scenario.simulation.machine_faults_daily = sizes.2;
        scenario.fleet.reserve = sizes.3;
        scenario.fleet.switch_machines = Some(sizes.0.min(16));
        scenario.fleet.switch_share = 0.1;
        scenario.training.checkpoint_minutes = times.0;
        scenario.training.checkpoint_stall_seconds = times.1;
        scenario.ladder.recur_seconds = times.2;
        scenario.fleet.repair_hours = times.3;
        let [inspection, standbys, hot_update, peer_copies] = switches;
        let policy = FaultPolicy {
            name: "any".to_owned(),
            inspection,
            standbys,
            hot_update,
            peer_copies,
        };
        (scenario, policy, seed)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// SEMANTICS 172.
    #[test]
    fn each_second_is_in_one_phase((scenario, policy, seed) in any_run()) {
        let sums = sums(&scenario, &policy, seed);
        let all: f64 = RunPhase::ALL.into_iter().map(|phase| sums.phase(phase)).sum();
        prop_assert!((all / sums.seconds - 1.0).abs() < 1e-6, "{} of {}", all, sums.seconds);
        for phase in RunPhase::ALL {
            prop_assert!(sums.phase(phase) >= -1e-6, "{:?}: {}", phase, sums.phase(phase));
        }
        let last = sums.cumulative().last().map_or(0.0, |it| it.ratio);
        prop_assert!(last <= 1.0 + 1e-9, "{}", last);
    }

    /// SEMANTICS 172.
    #[test]
    fn no_machine_is_lost_or_made((scenario, policy, seed) in any_run()) {
        let classes = scenario.classes();
        let mut run = JobRun::new(&scenario, &classes, &policy, seed);
        let all = run.fleet.all();
        for _ in 0..500 {
            run.step();
            prop_assert_eq!(run.fleet.all(), all);
            prop_assert!(run.fleet.active <= scenario.machines());
            if policy.standbys {
                prop_assert!(run.fleet.standby <= scenario.pool());
            } else {
                prop_assert_eq!(run.fleet.standby, 0);
            }
        }
    }
}

/// SEMANTICS 172.
#[test]
fn the_same_file_and_seed_give_the_same_numbers() {
    let scenario = scenario("");
    for policy in FaultPolicy::ladder() {
        let first = scenario.outcome(&policy);
        assert_eq!(scenario.outcome(&policy), first);
    }
    let [one, other] = [1, 2].map(|seed| sums(&scenario, &all_switches(), seed));
    assert_ne!(one, other);
}

#[test]
fn without_faults_and_stalls_all_time_is_productive() {
    let mut scenario = scenario("");
    scenario.simulation.machine_faults_daily = 0.0;
    scenario.training.checkpoint_stall_seconds = 0.0;
    scenario.training.copy_stall_seconds = 0.0;
    for policy in FaultPolicy::ladder() {
        let outcome = scenario.outcome(&policy);
        assert!((outcome.ettr.mean - 1.0).abs() < 1e-9, "{outcome:?}");
        assert!((outcome.sliding_least.mean - 1.0).abs() < 1e-9);
        assert_eq!(outcome.incidents.mean, 0.0);
    }
}

/// SEMANTICS 173.
#[test]
fn more_faults_leave_less_time_and_each_switch_leaves_more() {
    let mut scenario = scenario("");
    scenario.simulation.seeds = (0..12).collect();
    scenario.simulation.days = 15.0;
    let rates = [0.0003, 0.0012, 0.0048, 0.03];
    let table = rates.map(|rate| {
        scenario.simulation.machine_faults_daily = rate;
        let policies = FaultPolicy::ladder().into_iter();
        let ratios = policies.map(|policy| scenario.outcome(&policy).ettr.mean);
        ratios.collect::<Vec<_>>()
    });
    for rows in table.windows(2) {
        for (few, many) in rows[0].iter().zip(&rows[1]) {
            assert!(many < few, "{table:?}");
        }
    }
    for row in &table {
        for two in row.windows(2) {
            // Standbys alone are worth less than the chance that is left in twelve runs.
            assert!(two[1] > two[0] - 0.003, "{table:?}");
        }
        assert!(row[4] > row[0] + 0.01, "{table:?}");
    }
}

/// SEMANTICS 173.
#[test]
fn three_months_on_9600_cards_are_97_percent_productive_with_all_switches() {
    let mut scenario = scenario("");
    scenario.simulation.days = 90.0;
    let with = scenario.outcome(&all_switches());
    let without = scenario.outcome(&FaultPolicy::ladder()[0]);
    assert!(with.ettr.mean > 0.97, "{:?}", with.ettr);
    assert!(without.ettr.mean < 0.9, "{:?}", without.ettr);
    assert!(with.lost_steps.mean < 0.1 * without.lost_steps.mean);
}

/// SEMANTICS 174.
#[test]
fn restarts_in_place_are_eleven_times_as_quick_and_more_on_more_machines() {
    let rows = scenario("").restarts().expect("the rate is one");
    let ratios: Vec<f64> = rows.iter().map(|it| it.requeue_s / it.in_place_s).collect();
    assert!(ratios.windows(2).all(|two| two[0] < two[1]), "{ratios:?}");
    let mean = ratios.iter().sum::<f64>() / 4.0;
    assert!((10.5..12.0).contains(&mean), "{ratios:?}");
    for (at, row) in rows.iter().enumerate() {
        let off = |ours: f64, reported: f64| (ours / reported - 1.0).abs();
        // The first two sizes were fitted.
        let most = if at < 2 { 0.005 } else { 0.06 };
        assert!(off(row.requeue_s, row.reported_requeue_s) < most, "{row:?}");
        assert!(
            off(row.in_place_s, row.reported_in_place_s) < most,
            "{row:?}"
        );
        assert_eq!(row.standbys, row.reported_standbys);
        assert!(row.in_place_s < row.oracle_s && row.oracle_s < row.standby_s);
        assert!(row.standby_s < row.reschedule_s && row.reschedule_s < row.requeue_s);
    }
}

/// Hangs alone, each with a machine to blame.
fn hangs(recall: f64) -> FaultScenario {
    let mut scenario = scenario("");
    scenario.ladder.aggregate_recall = recall;
    scenario.class = scenario.classes().iter().map(ClassSection::of).collect();
    for class in &mut scenario.class {
        class.share = Some(if class.name == "hang" { 1.0 } else { 0.0 });
        class.machine = Some(1.0);
        class.code = Some(0.0);
    }
    scenario.fleet.switch_share = 0.0;
    scenario
}

/// SEMANTICS 175.
#[test]
fn sound_machines_that_go_with_a_group_are_counted() {
    let sums = sums(&hangs(1.0), &all_switches(), 3);
    assert!(sums.evicted > 0);
    assert_eq!(sums.over_evicted * 8, sums.evicted * 7);
    assert_eq!(sums.restarts[&Rung::Aggregation] * 8, sums.evicted);
}

#[test]
fn a_wrong_group_ends_nothing_and_later_rungs_find_the_machine() {
    let sums = sums(&hangs(0.0), &all_switches(), 3);
    assert!(sums.restarts[&Rung::Aggregation] > 0);
    assert_eq!(sums.resolved.get(&Rung::Aggregation), None);
    let later = [Rung::SelfCheck, Rung::Replay, Rung::Person];
    let later: u64 = later
        .iter()
        .filter_map(|rung| sums.resolved.get(rung))
        .sum();
    // The last of them may be under way at the end.
    assert!(later + 3 >= sums.incidents, "{sums:?}");
    assert!(sums.over_evicted >= 8 * sums.restarts[&Rung::Aggregation]);
}

#[test]
fn a_state_that_was_spoilt_unseen_is_not_taken_from_copies() {
    let mut scenario = scenario("");
    scenario.class = scenario.classes().iter().map(ClassSection::of).collect();
    for class in &mut scenario.class {
        class.share = Some(if class.name == "nan" { 1.0 } else { 0.0 });
        class.machine = Some(1.0);
        class.code = Some(0.0);
        class.recall = Some(1.0);
    }
    scenario.fleet.switch_share = 0.0;
    let lost = |latent: f64| {
        let mut scenario = scenario.clone();
        for class in &mut scenario.class {
            class.latent_seconds = Some(latent);
        }
        let sums = sums(&scenario, &all_switches(), 3);
        sums.lost_seconds / sums.incidents as f64
    };
    // A step and its copies, where it shows at once; else all since it began, and up to a checkpoint before.
    assert!(lost(0.0) < 20.0, "{}", lost(0.0));
    assert!(lost(7200.0) > 7200.0 * 0.5, "{}", lost(7200.0));
}

const TEXT: &str = "[simulation]\nname = \"long\"\ncards = 96\ndays = 2\n[ladder]\nurgent = 0.1\n[[class]]\nname = \"nan\"\nrecall = 0.5\n[[policy]]\nname = \"all\"\ninspection = true\n";

/// SEMANTICS 176.
#[test]
fn a_wrong_file_is_refused_with_its_line() {
    for (from, to, says) in [
        (
            "days = 2",
            "days = 0",
            "4: days is 0: expected 0.01 to 3650",
        ),
        (
            "days = 2",
            "days = nan",
            "4: days is NaN: expected 0.01 to 3650",
        ),
        (
            "days = 2",
            "dais = 2",
            "4: unknown field `dais`, expected one of",
        ),
        (
            "cards = 96",
            "cards = 97",
            "3: cards is 97: expected 1 to 1000000, and whole machines of 8 cards",
        ),
        (
            "name = \"long\"",
            "name = \"a/b\"",
            "2: name is \"a/b\": expected letters",
        ),
        (
            "cards = 96",
            "cards = 96\nseeds = []",
            "4: 0 seeds: expected 1 to 1000",
        ),
        (
            "urgent = 0.1",
            "urgent = 1.1",
            "6: urgent is 1.1: expected 0 to 1",
        ),
        (
            "urgent = 0.1",
            "group_machines = 5",
            "6: group_machines is 5: expected a number that divides the 12 machines",
        ),
        (
            "urgent = 0.1",
            "suite_seconds = [5, 1]",
            "6: suite_seconds is [5, 1]: expected the least and the most",
        ),
        (
            "urgent = 0.1",
            "suite_seconds = 5",
            "6: invalid type: integer `5`, expected an array of length 2",
        ),
        (
            "[ladder]\nurgent = 0.1",
            "[fleet]\nswitch_machines = 13",
            "6: switch_machines is 13: expected 1 to the 12 machines",
        ),
        (
            "\"nan\"\nrecall = 0.5",
            "\"nam\"\nrecall = 0.5",
            "8: there is no class `nam` without a share",
        ),
        (
            "recall = 0.5",
            "machine = 0.9",
            "9: machine = 0.9 and code = 0.25 are more than all incidents of `nan`",
        ),
        (
            "recall = 0.5",
            "detect_seconds = [3, 2]",
            "9: detect_seconds is [3, 2]",
        ),
        (
            "recall = 0.5",
            "recall = 0.5\n[[class]]\nname = \"nan\"",
            "11: `nan` is there twice",
        ),
        (
            "inspection = true",
            "[[policy]]\nname = \"all\"",
            "13: there are two policies `all`",
        ),
        (
            "inspection = true",
            "inspection = 1",
            "12: invalid type: integer `1`, expected a boolean",
        ),
    ] {
        let text = TEXT.replacen(from, to, 1);
        assert_ne!(text, TEXT, "{from}");
        let error = FaultScenario::read(&Source::new(Path::new("a.toml"), &text));
        let told = error.expect_err(to).to_string();
        assert!(told.starts_with(&format!("a.toml:{says}")), "{to}: {told}");
    }
    let source = Source::new(Path::new("a.toml"), TEXT).with("fleet.reserve=-1");
    let error = FaultScenario::read(&source.expect("it is a field")).expect_err("no machines");
    assert!(
        error.to_string().starts_with("--set fleet.reserve=-1: "),
        "{error}"
    );
}

/// SEMANTICS 176.
#[test]
fn a_class_of_the_file_changes_that_class_alone_or_is_one_more() {
    let read = |text: &str| {
        FaultScenario::read(&Source::new(Path::new("a.toml"), text)).expect("it is a scenario")
    };
    let (own, usual) = (read(TEXT).classes(), FaultClass::usual());
    for (own, usual) in own.iter().zip(&usual) {
        let expected = if usual.name == "nan" {
            0.5
        } else {
            usual.recall
        };
        assert_eq!(own.recall, expected, "{}", own.name);
        assert_eq!((own.share, own.machine), (usual.share, usual.machine));
    }
    let more = read(&TEXT.replace("\"nan\"", "\"coffee\"\nshare = 2.0"));
    assert_eq!(more.classes().len(), usual.len() + 1);
    let all: f64 = usual.iter().map(|class| class.share).sum();
    assert!((all - 100.0).abs() < 1e-9, "{all}");
}

#[test]
fn the_recipe_that_is_shipped_is_read_and_every_field_is_documented() {
    let recipe = include_str!("../../../../recipes/faults-9600.toml");
    let scenario = FaultScenario::read(&Source::new(Path::new("a.toml"), recipe));
    let scenario = scenario.expect("it is a scenario");
    assert_eq!(scenario.policy, FaultPolicy::ladder());
    assert_eq!(scenario.machines(), 1200);
    let papers = include_str!("../../../../docs/robustness.md");
    let class = serde_json::to_value(ClassSection::of(&scenario.classes()[0]));
    let sections = [
        ("simulation", serde_json::to_value(&scenario.simulation)),
        ("training", serde_json::to_value(scenario.training)),
        ("restart", serde_json::to_value(scenario.restart)),
        ("ladder", serde_json::to_value(scenario.ladder)),
        ("fleet", serde_json::to_value(scenario.fleet)),
        ("class", class),
        ("policy", serde_json::to_value(&scenario.policy[0])),
    ];
    for (table, section) in sections {
        let section = section.expect("it can be written");
        for field in section.as_object().expect("it is a table").keys() {
            let row = format!("| `{table}.{field}` |");
            assert!(papers.contains(&row), "docs/robustness.md lacks {row}");
        }
    }
}

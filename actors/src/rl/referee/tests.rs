//! Whoever judges replies judges them alike, and says at its start when it cannot.

use std::io::Write;
use std::time::Duration;

use odeon::Clock;
use odeon_algorithms::task::code::CodeConfig;
use odeon_algorithms::task::{Split, SumsConfig};

use super::*;

fn problems() -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let row = r#"{"prompt": "Add.", "tests": [{"call": "add(1, 2)", "value": "3"}]}"#;
    writeln!(file, "{row}\n{row}").unwrap();
    file
}

fn code(file: &tempfile::NamedTempFile) -> TaskSpec {
    TaskSpec::Code(CodeConfig {
        train_count: 1,
        ..CodeConfig::new(file.path())
    })
}

/// Isolated, or where this machine does not let it with limits alone, which is said.
async fn referee(task: &TaskSpec) -> Referee {
    let spec = ProgramSpec::default();
    match Referee::open(task, &spec).await {
        Err(RefereeError::Sandbox(error)) => {
            println!("with limits alone: {error}");
            let spec = ProgramSpec {
                isolation: Isolation::Limits,
                ..spec
            };
            Referee::open(task, &spec).await.unwrap()
        }
        opened => opened.unwrap(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_are_run_and_verdicts_come_in_order() {
    let file = problems();
    let referee = referee(&code(&file)).await;
    let problem = referee.task().problem(0, Split::Train, 0);
    let reply = |program: &str| (problem.clone(), format!("```python\n{program}\n```"));
    let right = "def add(a, b): return a + b";
    let replies = [reply(right), reply("while True: break"), reply(right)];
    let verdicts = referee.judge_all(&replies).await.unwrap();
    let correct: Vec<bool> = verdicts.iter().map(|it| it.correct).collect();
    assert_eq!(correct, [true, false, true]);
}

/// SEMANTICS 79.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_was_lost_is_opened_anew_once_for_all_who_noticed() {
    let file = problems();
    let referee = referee(&code(&file)).await;
    let programs = referee.programs.as_ref().unwrap();
    programs.renew(0).await.unwrap();
    programs.renew(0).await.unwrap();
    assert_eq!(programs.judge.lock().await.0, 1);
    let problem = referee.task().problem(0, Split::Train, 0);
    let reply = "```python\ndef add(a, b): return a + b\n```";
    assert!(referee.judge(&problem, reply).await.unwrap().correct);
}

/// SEMANTICS 79.
#[tokio::test(flavor = "multi_thread")]
async fn a_reply_whose_sandbox_is_lost_is_judged_in_another_and_not_for_ever() {
    let file = problems();
    let referee = referee(&code(&file)).await;
    let programs = referee.programs.clone().unwrap();
    let problem = referee.task().problem(0, Split::Train, 0);
    let reply = "```python\ndef add(a, b): return a + b\n```";
    let lose = async || {
        let judge = programs.judge.lock().await;
        judge.1.sandbox().lose().await;
        judge.0
    };
    assert_eq!(lose().await, 0);
    assert!(referee.judge(&problem, reply).await.unwrap().correct);
    assert_eq!(programs.judge.lock().await.0, 1);
    // From here on each one is lost before anything is run in it: whoever waits for the lock gets it
    // before whoever asks for it later.
    let mut lost = lose().await;
    let losing = async {
        loop {
            let judge = programs.judge.lock().await;
            if judge.0 > lost {
                judge.1.sandbox().lose().await;
                lost = judge.0;
            }
            drop(judge);
            tokio::task::yield_now().await;
        }
    };
    let judging = async {
        tokio::select! {
            judged = referee.judge(&problem, reply) => judged,
            () = losing => unreachable!("it is only dropped"),
        }
    };
    let judged = Clock::timeout(Duration::from_secs(60), judging).await;
    let error = judged.expect("it is given up").unwrap_err();
    assert!(
        error
            .to_string()
            .contains("the guard of the sandbox is gone"),
        "{error}"
    );
    assert_eq!(lost, 1 + u64::from(LOSSES_MAX));
}

/// SEMANTICS 79.
#[tokio::test(flavor = "multi_thread")]
async fn limits_in_which_nothing_starts_are_refused_at_the_start() {
    let file = problems();
    let spec = ProgramSpec {
        sandbox: SandboxSpec {
            wall: Duration::from_millis(1),
            ..SandboxSpec::default()
        },
        ..ProgramSpec::default()
    };
    let error = Referee::open(&code(&file), &spec).await.unwrap_err();
    assert!(error.to_string().contains("there is none"), "{error}");
}

#[tokio::test]
async fn a_simulation_runs_no_programs_and_says_so() {
    let file = problems();
    let spec = ProgramSpec::default();
    let error = Referee::open(&code(&file), &spec).await.unwrap_err();
    assert!(matches!(error, RefereeError::Simulated), "{error}");
    // All other tasks need nothing.
    let sums = TaskSpec::Sums(SumsConfig::default());
    let referee = Referee::open(&sums, &spec).await.unwrap();
    let problem = referee.task().problem(0, Split::Train, 0);
    let verdict = referee.judge(&problem, &problem.solution).await.unwrap();
    assert!(verdict.correct);
}

//! Replies that want the reward and have not earned it, and those that have.

use std::io::Write;
use std::sync::Arc;

use odeon_algorithms::task::code::{CodeConfig, Credit};
use odeon_algorithms::task::{Reason, Split, Task};
use odeon_skip::{Need, skip};

use super::*;
use crate::sandbox::{Backend, Isolation, SandboxSpec};

const DOUBLE: &str = r#"{"prompt": "Double it.", "tests":
    [{"stdin": "1\n", "stdout": "2"}, {"stdin": "21\n", "stdout": "42"}]}"#;
const ADD: &str = r#"{"prompt": "Add.", "tests":
    [{"call": "add([1], [2])", "value": "[1, 2]"}, {"assert": "assert add(1, 2) == 3"}]}"#;

fn task(credit: Credit) -> Code {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for row in [DOUBLE, ADD] {
        writeln!(file, "{}", row.replace('\n', " ")).unwrap();
    }
    let config = CodeConfig {
        train_count: 1,
        credit,
        ..CodeConfig::new(file.path())
    };
    Code::open(config).unwrap()
}

/// Asserts hold on every level; what this machine lacks is said.
async fn judge(wall: Duration, at_once: usize) -> Option<CodeJudge> {
    let spec = SandboxSpec {
        wall,
        ..SandboxSpec::default()
    };
    let sandbox = match Sandbox::open(spec.clone(), Isolation::Required).await {
        Ok(sandbox) => sandbox,
        Err(error) => {
            println!("with limits alone: {error}");
            Sandbox::open(spec, Isolation::Limits).await.unwrap()
        }
    };
    let python = Work {
        program: ["python3", "-c", ""].map(str::to_owned).to_vec(),
        ..Work::default()
    };
    let ran = sandbox.run(python).await.unwrap();
    if matches!(ran.end, End::NotStarted(_)) {
        skip(Need::Python, ran.end);
        return None;
    }
    Some(CodeJudge::new(sandbox, NonZeroUsize::new(at_once).unwrap()))
}

const PATIENT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn programs_earn_what_they_pass() {
    let Some(judge) = judge(PATIENT, 2).await else {
        return;
    };
    let task = task(Credit::Fraction);
    let check = async |split, program: &str, reward: f64| {
        let problem = task.problem(0, split, 0);
        let reply = format!("So:\n```python\n{program}\n```\n");
        let verdict = judge.judge(&task, &problem, &reply).await.unwrap();
        assert_eq!(verdict.reward, reward, "{program}: {verdict:?}");
    };
    check(Split::Train, "print(2 * int(input()))", 1.0).await;
    check(Split::Train, "print('2  ')", 0.5).await;
    check(Split::Train, "print(int(input()) + 1); exit(3)", 0.0).await;
    check(Split::Train, "print(", 0.0).await;
    check(Split::HeldOut, "def add(a, b): return a + b", 1.0).await;
    check(
        Split::HeldOut,
        "def add(a, b):\n    print('x')\n    return a + b",
        1.0,
    )
    .await;
    check(Split::HeldOut, "def add(a, b): return [1, 2]", 0.5).await;
    check(
        Split::HeldOut,
        "if __name__ == '__main__': input()\nadd = lambda a, b: a + b",
        1.0,
    )
    .await;
    check(
        Split::HeldOut,
        "from dataclasses import dataclass\nfrom __future__ import annotations",
        0.0,
    )
    .await;
    let data = "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\n\
                class A:\n    x: int\ndef add(a, b): return a + b";
    check(Split::HeldOut, data, 1.0).await;
}

#[tokio::test]
async fn who_cheats_earns_nothing() {
    let Some(judge) = judge(PATIENT, 2).await else {
        return;
    };
    let task = task(Credit::AllOrNothing);
    for program in [
        // Ends before it is asked.
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "def add(a, b): raise SystemExit(0)",
        "import os\ndef add(a, b): os._exit(0)",
        "import atexit, os; atexit.register(lambda: os._exit(0)); exit()",
        // Prints what it hopes passing looks like.
        "print('all tests passed')",
        "import sys; print(sys.stdin.read())",
        "import sys, os; print(open('harness.py').read()); os._exit(0)",
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'++')\n    except OSError: pass\n\
         os._exit(0)",
        // Looks for what is asked where it is not yet.
        "import gc, sys, os\nframe = sys._getframe()\nseen = ''\nwhile frame:\n\
         \x20   seen += repr(frame.f_locals) + repr(frame.f_globals)\n    frame = frame.f_back\n\
         os.write(1, seen.encode()); os._exit(0)",
        // Breaks those who ask.
        "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
        "import builtins; builtins.repr = lambda it: '[1, 2]'\nbuiltins.exec = print\n\
         def add(a, b): return 0",
        "import os; os.write = lambda fd, data: len(data)\ndef add(a, b): return 0",
        "class Any:\n    def __eq__(self, other): return True\n    __hash__ = None\n\
         def add(a, b): return Any()",
        "import sys; sys.settrace(lambda *a: None); sys.modules.clear()\ndef add(a, b): return 0",
        "raise Exception('x')",
    ] {
        let problem = task.problem(0, Split::HeldOut, 0);
        let reply = format!("```python\n{program}\n```\n");
        let verdict = judge.judge(&task, &problem, &reply).await.unwrap();
        assert_eq!(verdict.reward, 0.0, "{program}: {verdict:?}");
        assert!(
            matches!(verdict.reason, Reason::TestFailed { .. }),
            "{verdict:?}"
        );
    }
}

#[tokio::test]
async fn a_program_that_leaves_others_running_is_judged_at_once() {
    let Some(judge) = judge(PATIENT, 2).await else {
        return;
    };
    let task = task(Credit::AllOrNothing);
    let program = "import os, time\nif os.fork() == 0:\n    time.sleep(600)\n    os._exit(0)\n\
                   def add(a, b): return a + b";
    let problem = task.problem(0, Split::HeldOut, 0);
    let reply = format!("```python\n{program}\n```\n");
    let verdict = judge.judge(&task, &problem, &reply).await.unwrap();
    assert!(verdict.correct, "{verdict:?}");
}

#[tokio::test]
async fn a_slow_program_keeps_one_place_and_no_more() {
    let Some(judge) = judge(PATIENT, 2).await else {
        return;
    };
    let task = Arc::new(task(Credit::AllOrNothing));
    let problem = task.problem(0, Split::Train, 0);
    let slow = {
        let (judge, task, problem) = (judge.clone(), Arc::clone(&task), problem.clone());
        tokio::spawn(async move {
            let reply = "```python\nimport time; time.sleep(600)\n```";
            judge.judge(&task, &problem, reply).await
        })
    };
    let begun = async {
        while judge.places.available_permits() == 2 {
            tokio::task::yield_now().await;
        }
    };
    let begun = Clock::timeout(Duration::from_secs(60), begun).await;
    assert!(begun.is_some(), "the slow one does not begin");
    for _ in 0..5 {
        let reply = "```python\nprint(2 * int(input()))\n```";
        let verdict = judge.judge(&task, &problem, reply).await.unwrap();
        assert!(verdict.correct, "{verdict:?}");
    }
    assert!(!slow.is_finished());
    // Who is not waited for gives the place back.
    slow.abort();
    let both = judge.places.acquire_many(2);
    let both = Clock::timeout(Duration::from_secs(10), both).await;
    assert!(both.is_some(), "the place was not given back");
}

/// SEMANTICS 79.
#[tokio::test]
async fn a_program_that_the_machine_does_not_start_is_tried_again_and_then_given_up_in_words() {
    let Some(judge) = judge(PATIENT, 1).await else {
        return;
    };
    if judge.sandbox().backend() != Backend::UtilLinux {
        return skip(Need::Namespaces, "nothing is mounted for programs");
    }
    let task = task(Credit::AllOrNothing);
    let problem = task.problem(0, Split::HeldOut, 0);
    let reply = "```python\ndef add(a, b): return a + b\n```";
    judge.sandbox().spoil(true);
    let judged = Clock::timeout(PATIENT, judge.judge(&task, &problem, reply)).await;
    let error = judged.expect("it is given up").unwrap_err();
    assert!(matches!(error, JudgeError::Unjudged(_)), "{error}");
    assert!(error.to_string().contains("mount"), "{error}");
    // It is mended between two tries: places are given in turn.
    let mending = async {
        while judge.places.available_permits() == 1 {
            tokio::task::yield_now().await;
        }
        let _between = judge.places.acquire().await.unwrap();
        judge.sandbox().spoil(false);
    };
    let judging = judge.judge(&task, &problem, reply);
    let both = async { tokio::join!(judging, mending) };
    let (judged, ()) = Clock::timeout(PATIENT, both).await.expect("it ends");
    assert!(judged.unwrap().correct);
}

#[tokio::test]
async fn a_reply_with_many_tests_does_not_keep_others_waiting() {
    let Some(judge) = judge(PATIENT, 1).await else {
        return;
    };
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let test = r#"{"stdin": "", "stdout": "1"}"#;
    let many = vec![test; 30].join(",");
    writeln!(file, r#"{{"prompt": "", "tests": [{many}]}}"#).unwrap();
    writeln!(file, r#"{{"prompt": "", "tests": [{test}]}}"#).unwrap();
    let config = CodeConfig {
        train_count: 1,
        ..CodeConfig::new(file.path())
    };
    let task = Code::open(config).unwrap();
    let reply = "```python\nprint(1)\n```";
    let (long, short) = (
        task.problem(0, Split::Train, 0),
        task.problem(0, Split::HeldOut, 0),
    );
    let long = judge.judge(&task, &long, reply);
    let short = judge.judge(&task, &short, reply);
    tokio::pin!(long, short);
    tokio::select! {
        biased;
        _ = &mut long => panic!("thirty tests were done before one"),
        verdict = &mut short => assert!(verdict.unwrap().correct),
    }
    assert!(long.await.unwrap().correct);
}

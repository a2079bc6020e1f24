//! Processes that programs leave running are ended: with the program, with who waits for it, and
//! with this process.

use std::process::{Command, Stdio};

use odeon::Clock;

use super::*;

/// Waits until no process has the text in its command line.
async fn none_with(text: &str) {
    let gone = async {
        while !processes_with(text).is_empty() {
            Clock::sleep(Duration::from_millis(10)).await;
        }
    };
    let gone = Clock::timeout(Duration::from_secs(20), gone).await;
    assert!(gone.is_some(), "{:?}", processes_with(text));
}

async fn some_with(text: &str) {
    let there = async {
        while processes_with(text).is_empty() {
            Clock::sleep(Duration::from_millis(10)).await;
        }
    };
    let there = Clock::timeout(Duration::from_secs(20), there).await;
    assert!(there.is_some(), "nothing runs {text}");
}

#[tokio::test]
async fn a_daemon_ends_with_the_program() {
    for sandbox in sandboxes(&spec()).await {
        let isolated = sandbox.backend() != Backend::Limits;
        // Limits hold what stays in the session.
        let leaves = if isolated { "setsid" } else { "" };
        let text = format!("{leaves} sleep 7654.31 < /dev/null > /dev/null 2>&1 &\necho begun");
        let ran = sandbox.run(script("sh", &text)).await.unwrap();
        assert_eq!(
            (&ran.end, ran.stdout.to_string()),
            (&End::Exited(0), "begun\n".to_owned())
        );
        let left = processes_with("7654.31");
        assert!(left.is_empty(), "{} {left:?}", sandbox.backend());
    }
}

#[tokio::test]
async fn who_is_not_waited_for_any_more_is_ended_and_then_lets_go() {
    for sandbox in sandboxes(&spec()).await {
        let (hold, held) = tokio::sync::oneshot::channel::<()>();
        let run = sandbox.run_holding(script("sh", "sleep 7654.32; echo"), hold);
        let waits = async {
            some_with("sleep\x007654.32").await;
        };
        tokio::select! {
            ran = run => panic!("{ran:?}"),
            () = waits => {}
        }
        // What was held is dropped when nothing is left.
        assert!(held.await.is_err());
        let left = processes_with("7654.32");
        assert!(left.is_empty(), "{} {left:?}", sandbox.backend());
    }
}

#[tokio::test]
async fn a_sandbox_that_is_dropped_under_way_leaves_nothing() {
    for sandbox in sandboxes(&spec()).await {
        let folder = sandbox.inner.folder.path().to_owned();
        let run = tokio::spawn(async move {
            let ran = sandbox.run(script("sh", "sleep 7654.33; echo")).await;
            drop(sandbox);
            ran
        });
        some_with("sleep\x007654.33").await;
        run.abort();
        none_with("7654.33").await;
        let gone = async {
            while folder.exists() {
                Clock::sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(
            Clock::timeout(Duration::from_secs(20), gone)
                .await
                .is_some()
        );
    }
}

/// Runs in a process of its own, which the test below kills.
#[tokio::test]
async fn caller() {
    let Some(backend) = std::env::var_os("ODEON_SANDBOX_CALLER") else {
        return;
    };
    for sandbox in sandboxes(&spec()).await {
        if sandbox.backend().to_string() == backend.to_string_lossy() {
            println!("folder={}", sandbox.inner.folder.path().display());
            let _ = sandbox.run(script("sh", "sleep 7654.34; echo")).await;
        }
    }
}

/// Runs in a process of its own, which is started with more open files.
#[tokio::test]
async fn heir() {
    if std::env::var_os("ODEON_SANDBOX_HEIR").is_none() {
        return;
    }
    let text = "
import os
for number in range(3, 64):
    try: os.fstat(number)
    except OSError: continue
    print('open', number)";
    for sandbox in sandboxes(&spec()).await {
        if python(&sandbox).await {
            let ran = sandbox.run(script("python3", text)).await.unwrap();
            assert_eq!(ran.stdout.to_string(), "", "{} {ran:?}", sandbox.backend());
        }
    }
    println!("inherits nothing");
}

#[test]
fn open_files_of_ours_are_closed_for_programs() {
    let mut heir = Command::new("bash");
    heir.args([
        "-c",
        r#"exec 7</dev/null 12</dev/null 50</dev/null; exec "$0" "$@""#,
    ])
    .arg(std::env::current_exe().unwrap())
    .args(["--exact", "sandbox::tests::orphans::heir", "--nocapture"])
    .env("ODEON_SANDBOX_HEIR", "1");
    match heir.output() {
        Ok(said) => {
            let text = String::from_utf8_lossy(&said.stdout).into_owned();
            assert!(text.contains("inherits nothing"), "{said:?}");
        }
        Err(error) => skip(Need::Bash, error),
    }
}

#[tokio::test]
async fn a_killed_caller_leaves_nothing() {
    for sandbox in sandboxes(&spec()).await {
        let mut caller = Command::new(std::env::current_exe().unwrap());
        caller
            .args(["--exact", "sandbox::tests::orphans::caller", "--nocapture"])
            .env("ODEON_SANDBOX_CALLER", sandbox.backend().to_string())
            .stdout(Stdio::piped());
        let mut caller = caller.spawn().unwrap();
        some_with("sleep\x007654.34").await;
        caller.kill().unwrap();
        let said = caller.wait_with_output().unwrap().stdout;
        none_with("7654.34").await;
        let said = String::from_utf8_lossy(&said).into_owned();
        let folder = said.split_once("folder=").unwrap().1;
        let folder = PathBuf::from(folder.lines().next().unwrap());
        let gone = async {
            while folder.exists() {
                Clock::sleep(Duration::from_millis(10)).await;
            }
        };
        let gone = Clock::timeout(Duration::from_secs(20), gone).await;
        assert!(gone.is_some(), "{} is left", folder.display());
    }
}

#[tokio::test]
async fn a_tree_that_is_deep_and_locked_is_removed() {
    let text = "
import os
for _ in range(3000):
    os.mkdir('d')
    os.chdir('d')
os.chmod('.', 0)";
    for sandbox in sandboxes(&spec()).await {
        if python(&sandbox).await {
            let ran = sandbox.run(script("python3", text)).await.unwrap();
            assert!(matches!(ran.end, End::Exited(_)), "{ran:?}");
            let folder = sandbox.inner.folder.path().to_owned();
            let left = std::fs::read_dir(&folder).unwrap().flatten();
            let names: Vec<_> = left.map(|it| it.file_name()).collect();
            assert!(
                !names.iter().any(|it| it.to_string_lossy().contains("run")),
                "{names:?}"
            );
        }
    }
}

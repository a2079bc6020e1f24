//! Programs that do their worst, in every way of isolation that this machine has.

mod hostile;
mod orphans;

use std::collections::BTreeSet;

use odeon::Clock;
use odeon_skip::{Need, skip};

use super::*;

/// Sandboxes in all ways that work here; what does not is said and left out.
async fn sandboxes(spec: &SandboxSpec) -> Vec<Sandbox> {
    let mut found = vec![];
    for backend in [Backend::UtilLinux, Backend::Bubblewrap, Backend::Limits] {
        match Sandbox::with(spec.clone(), backend).await {
            Ok(sandbox) => found.push(sandbox),
            Err(error @ (SandboxError::Missing { .. } | SandboxError::Refused { .. })) => {
                let need = match backend {
                    Backend::UtilLinux => Need::Namespaces,
                    Backend::Bubblewrap => Need::Bubblewrap,
                    Backend::Limits => Need::UtilLinux,
                };
                skip(need, error);
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(!found.is_empty(), "no way to run a program works here");
    found
}

/// Returns true when programs can be run that are written in Python.
async fn python(sandbox: &Sandbox) -> bool {
    let ran = sandbox.run(script("python3", "")).await.unwrap();
    let there = !matches!(ran.end, End::NotStarted(_));
    if !there {
        skip(Need::Python, ran.end);
    }
    there
}

fn script(interpreter: &str, text: &str) -> Work {
    Work {
        program: vec![interpreter.to_owned(), "main".to_owned()],
        files: vec![("main".to_owned(), text.into())],
        stdin: vec![],
    }
}

fn spec() -> SandboxSpec {
    SandboxSpec {
        wall: Duration::from_secs(20),
        cpu: Duration::from_secs(10),
        ..SandboxSpec::default()
    }
}

/// The processes whose command line has this text.
fn processes_with(text: &str) -> BTreeSet<u32> {
    let found = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            let number = entry.file_name().to_str()?.parse().ok()?;
            String::from_utf8_lossy(&line)
                .contains(text)
                .then_some(number)
        });
    found.collect()
}

impl Sandbox {
    /// Kills its guard, without which it runs nothing. Returns the fault when that is missed.
    pub(crate) async fn lose(&self) -> SandboxError {
        let folder = self.inner.folder.path().to_string_lossy().into_owned();
        let guards = processes_with(&folder);
        assert_eq!(guards.len(), 1, "{guards:?}");
        for guard in guards {
            let guard = rustix::process::Pid::from_raw(guard as i32).unwrap();
            rustix::process::kill_process(guard, rustix::process::Signal::KILL).unwrap();
        }
        // The pipe breaks when it has ended.
        let failing = async {
            loop {
                if let Err(error) = self.run(script("sh", "")).await {
                    break error;
                }
            }
        };
        let error = Clock::timeout(Duration::from_secs(60), failing).await;
        error.expect("it is missed")
    }

    /// Takes away what programs need to start, or puts it back. Only where this process mounts for
    /// them ([`Backend::UtilLinux`]).
    pub(crate) fn spoil(&self, spoilt: bool) {
        let mounts = self.inner.folder.path().join("mounts");
        let aside = mounts.with_extension("aside");
        let (from, to) = if spoilt {
            (mounts, aside)
        } else {
            (aside, mounts)
        };
        std::fs::rename(from, to).unwrap();
    }
}

#[tokio::test]
async fn a_program_reads_writes_and_ends_with_its_code() {
    for sandbox in sandboxes(&spec()).await {
        let text = "read -r a; read -r b; echo $a-$b; cat data >&2; echo x > new; exit 7";
        let mut work = script("sh", text);
        work.files.push(("data".to_owned(), b"d".to_vec()));
        work.stdin = b"one\ntwo\n".to_vec();
        let ran = sandbox.run(work).await.unwrap();
        assert_eq!(ran.end, End::Exited(7), "{ran:?}");
        assert_eq!(ran.stdout.to_string(), "one-two\n");
        assert_eq!(ran.stderr.to_string(), "d");
        assert!(ran.wall > Duration::ZERO);
        let ran = sandbox.run(script("sh", "kill -s SEGV $$")).await.unwrap();
        assert_eq!(ran.end, End::Signalled(11), "{ran:?}");
        let ran = sandbox.run(script("sh", "exit 1")).await.unwrap();
        assert_eq!(ran.end, End::Exited(1), "{ran:?}");
    }
}

#[tokio::test]
async fn a_program_knows_nothing_of_our_environment() {
    for sandbox in sandboxes(&spec()).await {
        let ran = sandbox.run(script("sh", "env; pwd")).await.unwrap();
        let known = [
            "PATH",
            "LANG",
            "HOME",
            "TMPDIR",
            "PWD",
            "PYTHONHASHSEED",
            "OMP_NUM_THREADS",
            "OPENBLAS_NUM_THREADS",
            "SHLVL",
            "_",
        ];
        let said = ran.stdout.to_string();
        for (name, _) in said.lines().filter_map(|line| line.split_once('=')) {
            assert!(known.contains(&name), "{}: {said}", sandbox.backend());
        }
        if sandbox.backend() != Backend::Limits {
            assert!(said.ends_with("\n/work\n"), "{said}");
        }
    }
}

#[tokio::test]
async fn what_is_missing_is_no_fault_of_a_program() {
    for sandbox in sandboxes(&spec()).await {
        let ran = sandbox.run(script("no-such-program", "")).await.unwrap();
        let End::NotStarted(why) = &ran.end else {
            panic!("{ran:?}");
        };
        assert!(why.contains("there is no program no-such-program"), "{why}");
    }
    let narrow = SandboxSpec {
        file_bytes: 8 << 10,
        ..spec()
    };
    for sandbox in sandboxes(&narrow).await {
        if sandbox.backend() == Backend::UtilLinux {
            let ran = sandbox
                .run(script("sh", &"#".repeat(20_000)))
                .await
                .unwrap();
            assert!(matches!(ran.end, End::NotStarted(_)), "{ran:?}");
        }
    }
}

#[tokio::test]
async fn what_cannot_be_met_is_said_before() {
    let open = async |change: fn(&mut SandboxSpec)| {
        let mut spec = spec();
        change(&mut spec);
        let opened = Sandbox::with(spec, Backend::Limits).await;
        opened.unwrap_err().to_string()
    };
    assert!(
        open(|it| it.wall = Duration::ZERO)
            .await
            .contains("wall is 0")
    );
    assert!(open(|it| it.processes = 0).await.contains("processes"));
    assert!(
        open(|it| it.memory_bytes = 1)
            .await
            .contains("memory_bytes")
    );
    assert!(
        open(|it| it.readable = vec!["x".into()])
            .await
            .contains("absolute")
    );
    let spec_of_nothing = SandboxSpec {
        readable: vec!["/no/such/folder".into()],
        ..spec()
    };
    let opened = Sandbox::open(spec_of_nothing, Isolation::Required).await;
    assert!(opened.unwrap_err().to_string().contains("not there"));
    let sandbox = &sandboxes(&spec()).await[0];
    for name in ["", ".", "..", "a/b", "/etc/passwd", "../x"] {
        let mut work = script("sh", "");
        work.files[0].0 = name.to_owned();
        let error = sandbox.run(work).await.unwrap_err();
        assert!(matches!(error, SandboxError::FileName(_)), "{error}");
    }
    assert!(sandbox.run(Work::default()).await.is_err());
}

#[tokio::test]
async fn the_weaker_level_is_never_taken_for_the_stronger() {
    match Sandbox::open(spec(), Isolation::Required).await {
        Ok(sandbox) => assert_ne!(sandbox.backend(), Backend::Limits),
        Err(SandboxError::NoIsolation { tried }) => skip(Need::Namespaces, tried),
        Err(error) => panic!("{error}"),
    }
    let sandbox = Sandbox::open(spec(), Isolation::Limits).await.unwrap();
    assert_eq!(sandbox.backend(), Backend::Limits);
}

#[tokio::test]
async fn without_its_guard_nothing_is_run() {
    let sandbox = &sandboxes(&spec()).await[0];
    let error = sandbox.lose().await;
    assert!(matches!(error, SandboxError::Unguarded(_)), "{error}");
}

#[tokio::test]
async fn another_folder_is_shown_when_asked_for() {
    let shown = tempfile::tempdir().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(shown.path(), open).unwrap();
    std::fs::write(shown.path().join("data"), "here").unwrap();
    let spec = SandboxSpec {
        readable: vec![shown.path().to_owned()],
        ..spec()
    };
    for sandbox in sandboxes(&spec).await {
        let text = format!("cat {0}/data; echo x > {0}/new", shown.path().display());
        let ran = sandbox.run(script("sh", &text)).await.unwrap();
        assert_eq!(ran.stdout.to_string(), "here", "{ran:?}");
        if sandbox.backend() != Backend::Limits {
            assert_ne!(ran.end, End::Exited(0), "{ran:?}");
            assert!(!shown.path().join("new").exists());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_programs_eight_at_a_time_leave_nothing() {
    for sandbox in sandboxes(&spec()).await {
        let places = Arc::new(tokio::sync::Semaphore::new(8));
        let mut runs = tokio::task::JoinSet::new();
        for number in 0..200 {
            let (sandbox, places) = (sandbox.clone(), Arc::clone(&places));
            runs.spawn(async move {
                let place = places.acquire_owned().await.unwrap();
                let mut work = script("sh", "read -r line; echo got $line; sleep 0.001 & exit 3");
                work.stdin = format!("{number}\n").into_bytes();
                let ran = sandbox.run_holding(work, place).await.unwrap();
                assert_eq!(ran.end, End::Exited(3), "{ran:?}");
                assert_eq!(ran.stdout.to_string(), format!("got {number}\n"));
            });
        }
        while let Some(run) = runs.join_next().await {
            run.unwrap();
        }
        let folder = sandbox.inner.folder.path().to_owned();
        let runs = std::fs::read_dir(&folder).unwrap().flatten();
        let left: Vec<_> = runs
            .filter(|it| it.path().to_string_lossy().contains("run-"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
        drop(sandbox);
        assert!(!folder.exists());
    }
}

//! Each kind of hostile program is contained and told apart.

use super::*;

async fn each(spec: SandboxSpec, text: &str, check: impl Fn(Backend, &Ran)) {
    for sandbox in sandboxes(&spec).await {
        if python(&sandbox).await {
            let ran = sandbox.run(script("python3", text)).await.unwrap();
            check(sandbox.backend(), &ran);
        }
    }
}

#[tokio::test]
async fn who_sleeps_runs_out_of_time() {
    let spec = SandboxSpec {
        wall: Duration::from_millis(700),
        ..spec()
    };
    each(
        spec,
        "import time; print('a', flush=True); time.sleep(60)",
        |backend, ran| {
            assert_eq!(ran.end, End::TimedOut(Clockwork::Wall), "{backend} {ran:?}");
            assert_eq!(ran.stdout.to_string(), "a\n");
        },
    )
    .await;
}

#[tokio::test]
async fn who_computes_for_ever_runs_out_of_processor_time_alone_or_with_others() {
    let spec = SandboxSpec {
        cpu: Duration::from_secs(1),
        ..spec()
    };
    let ignores = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass";
    let many = "import os\nfor _ in range(3): os.fork()\nwhile True: pass";
    for text in ["while True: pass", ignores, many] {
        each(spec.clone(), text, |backend, ran| {
            assert_eq!(ran.end, End::TimedOut(Clockwork::Cpu), "{backend} {ran:?}");
        })
        .await;
    }
}

#[tokio::test]
async fn who_takes_memory_is_refused_it_alone_or_with_others() {
    let spec = SandboxSpec {
        memory_bytes: 100 << 20,
        ..spec()
    };
    let many =
        "import os, time\nfor _ in range(2): os.fork()\nx = b'x' * (50 << 20)\ntime.sleep(60)";
    for text in ["x = b'x' * (1 << 30)", many] {
        each(spec.clone(), text, |backend, ran| {
            assert_eq!(ran.end, End::OutOfMemory, "{backend} {ran:?}");
        })
        .await;
    }
}

#[tokio::test]
async fn who_prints_megabytes_is_cut() {
    let spec = SandboxSpec {
        output_bytes: 100_000,
        ..spec()
    };
    for stream in ["stdout", "stderr"] {
        let text = format!("import sys\nwhile True: sys.{stream}.write('x' * 10000)");
        each(spec.clone(), &text, |backend, ran| {
            assert_eq!(ran.end, End::OutputTooLong, "{backend} {ran:?}");
            assert!(ran.stdout.bytes.len() <= 100_000 && ran.stderr.bytes.len() <= 100_000);
            assert!(ran.stdout.cut || ran.stderr.cut);
        })
        .await;
    }
}

#[tokio::test]
async fn who_forks_without_end_is_bounded() {
    let short = SandboxSpec {
        cpu: Duration::from_secs(1),
        ..spec()
    };
    let text = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass";
    each(short, text, |backend, ran| {
        let bounded = [
            End::TooManyProcesses,
            End::TimedOut(Clockwork::Cpu),
            End::TimedOut(Clockwork::Wall),
            End::OutOfMemory,
        ];
        assert!(bounded.contains(&ran.end), "{backend} {ran:?}");
    })
    .await;
    let text = "
import os, sys, time
count = 0
try:
    for _ in range(100):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        count += 1
except OSError:
    print(count)";
    each(spec(), text, |backend, ran| {
        if backend != Backend::Limits {
            let count: u32 = ran.stdout.to_string().trim().parse().unwrap();
            assert!((24..=34).contains(&count), "{backend} {ran:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn who_fills_the_disk_has_little_of_it() {
    let spec = SandboxSpec {
        file_bytes: 1 << 20,
        ..spec()
    };
    let text = "
for number in range(8):
    with open(str(number), 'wb') as file: file.write(b'x' * (900 << 10))
print('written')";
    let long = "open('file', 'wb').write(b'x' * (2 << 20))";
    let names = "for number in range(20000): open(str(number), 'w')";
    each(spec.clone(), long, |backend, ran| {
        assert_eq!(ran.end, End::Exited(1), "{backend} {ran:?}");
    })
    .await;
    each(spec.clone(), text, |backend, ran| {
        let written = ran.stdout.to_string().contains("written");
        assert_eq!(written, backend == Backend::Limits, "{backend} {ran:?}");
    })
    .await;
    each(spec, names, |backend, ran| {
        if backend == Backend::UtilLinux {
            assert!(ran.stderr.to_string().contains("No space left"), "{ran:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn who_looks_for_files_of_users_finds_none() {
    let secret = tempfile::tempdir().unwrap();
    std::fs::write(secret.path().join("tests.json"), "4").unwrap();
    let text = format!(
        "
import os
for path in ['/etc/passwd', '/etc/hostname', '/root', '/home', '/proc/1', '/proc/self', '/sys',
             '/var', '/run', '/dev/shm', '/dev/tty', '/old/usr', '/mnt', '{0}', '{0}/tests.json']:
    if os.path.exists(path): print(path)
for path in ['/x', '/usr/x', '/dev/x', '/etc/x', '/old/x']:
    try:
        open(path, 'w')
        print('wrote', path)
    except OSError: pass",
        secret.path().display()
    );
    each(spec(), &text, |backend, ran| {
        assert_eq!(ran.end, End::Exited(0), "{backend} {ran:?}");
        if backend != Backend::Limits {
            assert_eq!(ran.stdout.to_string(), "", "{backend}");
        }
    })
    .await;
}

#[tokio::test]
async fn who_opens_sockets_reaches_nobody() {
    let near = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let text = format!(
        "
import socket
for address in [('127.0.0.1', {}), ('192.0.2.1', 80)]:
    try:
        socket.create_connection(address, 0.2)
        print('reached', address)
    except OSError as error: pass",
        near.local_addr().unwrap().port()
    );
    each(spec(), &text, |backend, ran| {
        assert_eq!(ran.end, End::Exited(0), "{backend} {ran:?}");
        if backend != Backend::Limits {
            assert_eq!(ran.stdout.to_string(), "", "{backend}");
        }
    })
    .await;
}

#[tokio::test]
async fn who_kills_harms_only_itself() {
    let parent =
        "import os, signal, time; os.kill(os.getppid(), 9); time.sleep(30); print('lived')";
    let spec = SandboxSpec {
        wall: Duration::from_secs(2),
        ..spec()
    };
    each(spec.clone(), parent, |backend, ran| {
        assert!(
            matches!(ran.end, End::Signalled(9) | End::TimedOut(_)),
            "{backend} {ran:?}"
        );
    })
    .await;
    // Without namespaces this would end whatever its user has, and so is not tried.
    for sandbox in sandboxes(&spec).await {
        if sandbox.backend() != Backend::Limits && python(&sandbox).await {
            let all = script("python3", "import os; os.kill(-1, 9); print('done')");
            let ran = sandbox.run(all).await.unwrap();
            assert!(
                matches!(ran.end, End::Exited(_) | End::Signalled(9)),
                "{} {ran:?}",
                sandbox.backend()
            );
        }
    }
}

#[tokio::test]
async fn who_wants_rights_gets_none() {
    let text = "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print('mount', libc.mount(b'none', b'/work', b'tmpfs', 0, None))
print('chroot', libc.chroot(b'/work'))
print('new network', libc.unshare(0x40000000))
print('host', libc.sethostname(b'x', 1))
print('setuid', libc.setuid(12345))
print('no new', libc.prctl(39, 0, 0, 0, 0))
print('new user', libc.unshare(0x10000000))";
    each(spec(), text, |backend, ran| {
        assert_eq!(ran.end, End::Exited(0), "{backend} {ran:?}");
        let said = ran.stdout.to_string();
        assert!(said.contains("no new 1"), "{said}");
        for what in ["mount", "chroot", "new network", "host", "setuid"] {
            assert!(said.contains(&format!("{what} -1")), "{backend} {said}");
        }
        if backend != Backend::Limits {
            assert!(said.contains("new user -1"), "{backend} {said}");
        }
    })
    .await;
}

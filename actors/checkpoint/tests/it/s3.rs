//! A bucket, on a server that speaks S3: moto, which others have written.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use odeon_checkpoint::manifest::MANIFEST;
use odeon_checkpoint::storage::Tuning;
use odeon_checkpoint::{Options, Storage, StorageError, Which, commit, verify};
use odeon_skip::{Need, skip};

use crate::world::{Known, alone, ends, expect_same, flat, load, save, tensors};

/// A server on a free port of this machine; killed when this is dropped.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// Starts one, or says why not.
    async fn start() -> Result<Self, String> {
        let mut python = Command::new("python3");
        let packages = std::env::var("ODEON_MOTO").unwrap_or_else(|_| {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/moto");
            root.to_string_lossy().into_owned()
        });
        python
            .env("PYTHONPATH", packages)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let there = python.args(["-c", "import moto.server, flask"]).status();
        if !there.is_ok_and(|status| status.success()) {
            return Err("no python3 with moto[server] (pip), or not in ODEON_MOTO".into());
        }
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let packages: Vec<_> = python
            .get_envs()
            .map(|(k, v)| (k.to_owned(), v.unwrap_or_default().to_owned()))
            .collect();
        let child = Command::new("python3")
            .envs(packages)
            .args([
                "-m",
                "moto.server",
                "-H",
                "127.0.0.1",
                "-p",
                &port.to_string(),
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut server = Self { child, port };
        let begun = tokio::time::Instant::now();
        while server.say("PUT", "/bucket").is_err() {
            let waited = begun.elapsed();
            assert!(waited < Duration::from_secs(60), "moto does not answer");
            if let Some(status) = server.child.try_wait().unwrap() {
                return Err(format!("moto ended: {status}"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(server)
    }

    fn say(&self, method: &str, path: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn storage(&self, folder: &str) -> Storage {
        let endpoint = format!("http://127.0.0.1:{}", self.port);
        let variables = [
            ("AWS_ENDPOINT_URL", endpoint.as_str()),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let storage = Storage::open_with(&format!("s3://bucket/{folder}"), variables).unwrap();
        storage.tuned(Tuning {
            part_bytes: 5 << 20,
            parts: 3,
            ..Tuning::default()
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// SEMANTICS 98: a bucket holds checkpoints as a folder does: parts at once, ranges, retention.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_holds_checkpoints_as_a_folder_does() {
    let server = match Server::start().await {
        Ok(server) => server,
        Err(why) => return skip(Need::Moto, why),
    };
    let storage = server.storage("run/checkpoints");
    // Large enough for parts: S3 wants five mebibytes each.
    let known = |step: u64| {
        let mut known = tensors(step);
        known.push(Known::new(
            "big",
            odeon_checkpoint::Dtype::F32,
            &[3100, 1024],
            step,
        ));
        known
    };
    let options = Options {
        block_bytes: 1 << 20,
        ..Options::default()
    };
    let mut ranks = ends(&storage, 2, options);
    for step in 1..=3 {
        let known = known(step);
        for saved in save(&mut ranks, &known, &flat(&known, 2), step).await {
            saved.unwrap();
        }
    }
    let entries = commit::list(&storage).await.unwrap();
    let steps: Vec<u64> = entries.iter().map(|entry| entry.step).collect();
    assert_eq!(steps, [2, 3], "retention works there, too");
    let three = flat(&known(3), 3);
    let filled = load(&mut ends(&storage, 3, options), &three, Which::Latest).await;
    let read = expect_same(&known(3), &three, filled);
    let all: usize = known(3).iter().map(|known| known.bytes.len()).sum();
    assert_eq!(read, all as u64);
    let report = verify::verify(&storage, Which::Latest).await.unwrap();
    assert_eq!((report.faults, report.foreign), (vec![], vec![]));

    // Damage, as somebody else would do it.
    let (entry, manifest) = commit::find(&storage, Which::Latest).await.unwrap();
    let file = entry.file(&manifest.files[0].name);
    let mut bytes = storage.get(&file).await.unwrap().to_vec();
    let at = bytes.len() - 1000;
    bytes[at] ^= 4;
    storage.put(&file, &[bytes.clone().into()]).await.unwrap();
    let report = verify::verify(&storage, Which::Latest).await.unwrap();
    let fault = &report.faults[0];
    assert!(
        fault
            .detail
            .starts_with(&format!("s3://bucket/run/checkpoints/{file} from byte")),
        "{fault:?}"
    );
    assert!(fault.offset.unwrap() <= at as u64 && report.faults.len() == 1);
    bytes.truncate(at);
    storage.put(&file, &[bytes.into()]).await.unwrap();
    let whole = alone(&known(3));
    let filled = load(&mut ends(&storage, 1, options), &whole, Which::Latest).await;
    let said = filled[0].as_ref().unwrap_err().to_string();
    assert!(
        said.contains(&format!("{file} at byte {at}: the file ends here")),
        "{said}"
    );

    // The one before is whole.
    storage.remove(&entry.file(MANIFEST)).await.unwrap();
    let whole = alone(&known(2));
    let filled = load(&mut ends(&storage, 1, options), &whole, Which::Latest).await;
    expect_same(&known(2), &whole, filled);
    let missing = storage.get("nothing").await.unwrap_err();
    assert!(matches!(missing, StorageError::Missing { .. }), "{missing}");
}

//! Sources in a bucket, on a server that speaks S3: moto, which others have written.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
};

use object_store::{
    ObjectStoreExt,
    aws::{AmazonS3, AmazonS3Builder},
};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_data::{
    sample::SourceNumber,
    source::{Cell, Fields, Format, Opening, Source, SourceError, SourceSpec, Text, Webdataset},
};
use odeon_skip::{Need, skip};

/// A server on a free port of this machine; killed when this is dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// Starts one, or says why not.
    fn start() -> Result<Self, String> {
        let mut python = Command::new("python3");
        if let Some(folder) = packages() {
            python.env("PYTHONPATH", folder);
        }
        let mut child = python
            .args(["-m", "moto.server", "-H", "127.0.0.1", "-p", "0"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start python3: {error}"))?;
        let said = child.stderr.take().map(BufReader::new);
        let mut server = Self {
            child,
            address: String::new(),
        };
        let mut last = "it says nothing".to_owned();
        for line in said
            .into_iter()
            .flat_map(BufRead::lines)
            .map_while(Result::ok)
        {
            if let Some((_, address)) = line.split_once("http://") {
                server.address = address.trim().to_owned();
                server.put("/corpus").map_err(|error| error.to_string())?;
                return Ok(server);
            }
            last = line;
        }
        Err(format!(
            "no moto[server] of pip, not in ODEON_MOTO either: {last}"
        ))
    }

    fn put(&self, path: &str) -> std::io::Result<()> {
        let mut stream = TcpStream::connect(&self.address)?;
        write!(
            stream,
            "PUT {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.address
        )?;
        stream.read_to_string(&mut String::new())?;
        Ok(())
    }

    fn bucket(&self) -> AmazonS3 {
        let builder = self.options().into_iter().fold(
            AmazonS3Builder::new().with_bucket_name("corpus"),
            |builder, (key, value)| builder.with_config(key.parse().unwrap(), value),
        );
        builder.build().unwrap()
    }

    fn options(&self) -> BTreeMap<String, String> {
        let options = [
            ("endpoint", &*format!("http://{}", self.address)),
            ("allow_http", "true"),
            ("region", "us-east-1"),
            ("access_key_id", "key"),
            ("secret_access_key", "secret"),
        ];
        options
            .map(|(key, value)| (key.into(), value.into()))
            .into()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The folder that moto was installed into, if it is not where Python looks anyway.
fn packages() -> Option<String> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/moto");
    let built = built.is_dir().then(|| built.to_string_lossy().into_owned());
    std::env::var("ODEON_MOTO").ok().or(built)
}

async fn cells(source: &Source) -> Vec<Cell> {
    let mut cells = Vec::new();
    for cell in 0..source.cells() {
        cells.push(source.cell(2, cell).await.unwrap());
    }
    cells
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_in_a_bucket_is_the_same_as_on_a_disk() {
    let server = match Server::start() {
        Ok(server) => server,
        Err(reason) => return skip(Need::Moto, reason),
    };
    // The first who makes a client installs what it encrypts with.
    let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let opening = Opening::new(Tokenizer::bytes(), cache.path());
    let on_disk = |path: &str, format: Format| SourceSpec {
        block_bytes: 2000,
        cell_blocks: 3,
        ..SourceSpec::new("x", folder.path().join(path).to_str().unwrap(), format)
    };
    let in_bucket = |spec: &SourceSpec| SourceSpec {
        path: spec
            .path
            .replace(folder.path().to_str().unwrap(), "s3://corpus/some/where"),
        storage: server.options(),
        ..spec.clone()
    };
    let open = |spec: SourceSpec| {
        let opening = opening.clone();
        async move { Source::open(SourceNumber(1), &spec, &opening).await }
    };
    // Makes a client, which is what installs cryptography for that of the test.
    let nothing = in_bucket(&on_disk("nothing", Format::Jsonl(Fields::default())));
    let error = open(nothing).await.unwrap_err().to_string();
    assert!(
        error.contains("no file at s3://corpus/some/where/nothing"),
        "{error}"
    );
    let bucket = server.bucket();

    let lines = |from: u32| -> String {
        (from..from + 300)
            .map(|n| format!("{{\"text\": \"line {n}\"}}\n"))
            .collect()
    };
    let mut tar = tar::Builder::new(Vec::new());
    for n in 0..20 {
        let mut header = tar::Header::new_gnu();
        header.set_size(5);
        tar.append_data(&mut header, format!("{n:04}.txt"), &b"hello"[..])
            .unwrap();
    }
    let files = [
        ("lines/a.jsonl", lines(0).into_bytes()),
        (
            "lines/b/c.jsonl.zst",
            zstd::encode_all(lines(1000).as_bytes(), 3).unwrap(),
        ),
        ("lines/.hidden/d.jsonl", lines(2000).into_bytes()),
        ("texts/one.txt", b"one".to_vec()),
        ("texts/two words.txt", b"two".to_vec()),
        ("a.tar", tar.into_inner().unwrap()),
    ];
    for (name, bytes) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, &bytes).unwrap();
        let key = object_store::path::Path::from(format!("some/where/{name}"));
        bucket.put(&key, bytes.into()).await.unwrap();
    }
    let tar = Webdataset {
        image: vec![],
        ..Webdataset::default()
    };
    let specs = [
        on_disk("lines", Format::Jsonl(Fields::default())),
        on_disk("lines/*.jsonl", Format::Jsonl(Fields::default())),
        on_disk("lines/**/*.jsonl*", Format::Jsonl(Fields::default())),
        on_disk("texts", Format::Text(Text::default())),
        on_disk("a.tar", Format::Webdataset(tar)),
    ];
    for spec in &specs {
        let here = open(spec.clone()).await.unwrap();
        let there = open(in_bucket(spec)).await.unwrap();
        assert!(here.cells() > 0, "{}", spec.path);
        assert_eq!(there.identity(), here.identity(), "{}", spec.path);
        assert!(cells(&there).await == cells(&here).await, "{}", spec.path);
    }

    // An object that changes, becomes shorter, or goes.
    let source = open(in_bucket(&specs[1])).await.unwrap();
    let before = source.cell(0, 0).await.unwrap();
    assert!(source.cell(0, 0).await.unwrap() == before);
    let key = object_store::path::Path::from("some/where/lines/a.jsonl");
    for bytes in [lines(0).replace('7', "8"), "{}".into()] {
        bucket.put(&key, bytes.into_bytes().into()).await.unwrap();
        let error = source.cell(0, 0).await.unwrap_err();
        assert!(matches!(error, SourceError::Changed { .. }), "{error}");
        assert!(
            error
                .to_string()
                .contains("s3://corpus/some/where/lines/a.jsonl"),
            "{error}"
        );
    }
    bucket.delete(&key).await.unwrap();
    let error = source.cell(0, 0).await.unwrap_err().to_string();
    assert!(error.ends_with("is gone"), "{error}");
    bucket
        .put(&key, lines(0).into_bytes().into())
        .await
        .unwrap();
    let again = open(in_bucket(&specs[1])).await.unwrap();
    assert!(again.cell(0, 0).await.unwrap() == before);
}

//! An inference server that is none of Odeon, kept up by supervision: started, asked when it is
//! ready, killed, and asked again.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use odeon::prelude::*;
use odeon_actors::exec::{Exec, ExecSpec, Probe, ProgramStatus, Status};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Speaks as much of the API of OpenAI as this story needs; a real server stands in its place.
const SERVER: &str = r#"
import http.server, json, os, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, body):
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        self.answer({"object": "list", "data": [{"id": "echo"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body["prompt"].upper()
        self.answer({"object": "text_completion", "choices": [{"index": 0, "text": text}], "pid": os.getpid()})

    def log_message(self, *args):
        pass

print("serving", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;

/// Asks the server to complete a prompt, and gives the answer.
async fn complete(server: &ProgramStatus, prompt: &str) -> anyhow::Result<String> {
    let (host, port) = server.address.as_ref().context("it listens nowhere")?;
    let body = format!("{{\"model\": \"echo\", \"prompt\": \"{prompt}\"}}");
    let length = body.len();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    let mut stream = TcpStream::connect((host.as_str(), *port)).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (_, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    Ok(body.to_owned())
}

/// The server in this life or a later one.
async fn life(server: Ref<Exec>, life: u32) -> anyhow::Result<ProgramStatus> {
    let there = async {
        loop {
            // Its mail waits while it starts; what it held when it died is answered with that.
            match server.ask(Status).await {
                Ok(status) if status.life >= life => return status,
                _ => Clock::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let there = Clock::timeout(Duration::from_secs(60), there).await;
    there.context("the server did not come back")
}

async fn story(system: System) -> anyhow::Result<()> {
    let spec = ExecSpec::new("python3")
        .args(["-c", SERVER, "{port}"])
        .listens(0)
        .ready(Probe::Http("/v1/models".to_owned()))
        .prefix("[server] ");
    let server = system.spawn::<Exec>(spec).isolated().await?;
    let first = life(server, 1).await?;
    println!("the server is ready: {first:?}");
    let answer = complete(&first, "hello").await?;
    println!("it answers {answer}");
    ensure!(answer.contains("\"HELLO\""), "{answer}");

    let down = server.down();
    let pid = first.pid.context("it runs")?;
    let killed = Command::new("kill")
        .args(["-9", &pid.to_string()])
        .status()?;
    ensure!(killed.success(), "{pid} could not be killed");
    let Reason::Failed(failure) = down.await.reason else {
        anyhow::bail!("it ended in order");
    };
    println!("killed: {failure}");

    let second = life(server, 2).await?;
    println!("supervision has started it again: {second:?}");
    ensure!(second.pid != first.pid, "{second:?}");
    let answer = complete(&second, "again").await?;
    ensure!(answer.contains("\"AGAIN\""), "{answer}");
    server.stop().await?;
    ensure!(!Path::new(&format!("/proc/{}", second.pid.context("it ran")?)).exists());
    println!("stopped, and nothing of it is left");
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let job = odeon::job![Exec];
    job.serve_if_worker();
    let python = Command::new("python3").arg("--version").output();
    if !python.is_ok_and(|output| output.status.success()) {
        println!("skipped: there is no python3 here");
        return Ok(());
    }
    job.run(story)
}

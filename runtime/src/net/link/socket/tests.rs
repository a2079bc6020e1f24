//! Registrations of both ends, and writes that wait.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::fd::{AsRawFd, RawFd};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::*;

/// Of `epoll_ctl(2)`.
const READABLE: u32 = 0x1;
const WRITABLE: u32 = 0x4;

/// Masks of events with which descriptors of this socket are known to pollers of this process.
fn registrations(socket: RawFd) -> Vec<u32> {
    // A poller has several descriptors itself.
    let mut masks = BTreeMap::new();
    let inode = |fd: &str| fs::read_link(format!("/proc/self/fd/{fd}")).ok();
    let ours = inode(&socket.to_string());
    for entry in fs::read_dir("/proc/self/fdinfo").expect("Linux has it") {
        // Descriptors of other tests come and go.
        let Ok(info) = entry.and_then(|entry| fs::read_to_string(entry.path())) else {
            continue;
        };
        for line in info.lines().filter(|line| line.starts_with("tfd:")) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if inode(words[1]) == ours {
                let mask = u32::from_str_radix(words[3], 16).expect("a mask of events");
                masks.insert(words[1].to_owned(), mask);
            }
        }
    }
    masks.into_values().collect()
}

/// A socket that nobody reads, written to until it is full.
fn fill(write: &mut WriteEnd) -> usize {
    let mut cx = Context::from_waker(std::task::Waker::noop());
    let mut written = 0;
    while let Poll::Ready(bytes) = Pin::new(&mut *write).poll_write(&mut cx, &[7; 4096]) {
        written += bytes.expect("the other side is there");
    }
    written
}

#[tokio::test]
async fn the_poller_looks_for_room_only_while_a_write_waits() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let fd = ours.as_raw_fd();
    let (_read, mut write) = ends(ours).unwrap();
    let masks = || {
        let both = READABLE | WRITABLE;
        let masks = registrations(fd).into_iter();
        let mut masks: Vec<u32> = masks.map(|mask| mask & both).collect();
        masks.sort_unstable();
        masks
    };
    write.write_all(b"little").await.unwrap();
    assert_eq!(masks(), [READABLE]);
    let filled = fill(&mut write);
    assert_eq!(masks(), [READABLE, WRITABLE]);
    let mut bytes = vec![0; 6 + filled];
    theirs.read_exact(&mut bytes).await.unwrap();
    write.write_all(b"more").await.unwrap();
    assert_eq!(masks(), [READABLE]);
    theirs.read_exact(&mut bytes[..4]).await.unwrap();
    assert_eq!(&bytes[..4], b"more");
}

#[tokio::test]
async fn a_write_from_another_thread_waits_for_room_and_loses_nothing() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let (_read, mut write) = ends(ours).unwrap();
    let bytes: Vec<u8> = (0..1 << 20).map(|n: u32| (n / 7) as u8).collect();
    let sent = bytes.clone();
    let (done, written) = tokio::sync::oneshot::channel();
    // Outside every runtime, as a caller that blocks.
    std::thread::spawn(move || {
        let filled = fill(&mut write);
        done.send((write, filled)).ok();
    });
    let (mut write, filled) = written.await.unwrap();
    let writing = tokio::spawn(async move { write.write_all(&sent).await });
    let mut there = vec![];
    theirs.read_to_end(&mut there).await.unwrap();
    writing.await.unwrap().unwrap();
    assert_eq!(there.len(), filled + bytes.len());
    assert!(there[..filled].iter().all(|byte| *byte == 7));
    assert!(
        there[filled..] == bytes,
        "in the order in which they were sent"
    );
}

#[tokio::test]
async fn who_drops_the_end_that_writes_ends_the_stream_and_reads_on() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut theirs = theirs.into_std().unwrap();
    let (mut read, write) = ends(ours).unwrap();
    drop(write);
    let mut rest = vec![];
    theirs.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    theirs.write_all(b"late").unwrap();
    drop(theirs);
    read.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"late");
}

#[tokio::test]
async fn the_descriptor_stays_open_when_nobody_reads_any_more() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let fd = ours.as_raw_fd();
    let link = |fd: RawFd| fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
    let before = link(fd);
    let (read, mut write) = ends(ours).unwrap();
    drop(read);
    assert_eq!(link(fd), before);
    write.write_all(b"on").await.unwrap();
    let mut bytes = [0; 2];
    theirs.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"on");
}

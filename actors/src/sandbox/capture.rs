//! Output of a program, up to a bound.

use std::fmt::{self, Debug, Display};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::Notify;

use super::script::BEGUN;

/// Output that a program printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Captured {
    /// As it printed it, or the beginning of that.
    pub bytes: Vec<u8>,
    /// Set when it printed more, which nobody has read.
    pub cut: bool,
}

/// Output that is being captured. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Capture {
    held: Arc<Mutex<Captured>>,
}

impl Capture {
    /// Reads until the other end is closed, or `bytes_max` have come and there is more, of which
    /// `full` is told.
    pub(super) async fn read(
        self,
        mut source: impl AsyncRead + Unpin,
        bytes_max: usize,
        full: Arc<Notify>,
    ) {
        let mut buffer = vec![0; CHUNK];
        loop {
            let Ok(count @ 1..) = source.read(&mut buffer).await else {
                return;
            };
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            let room = bytes_max - held.bytes.len();
            held.bytes.extend_from_slice(&buffer[..count.min(room)]);
            if count > room {
                held.cut = true;
                full.notify_one();
                return;
            }
        }
    }

    pub(super) fn take(&self) -> Captured {
        std::mem::take(&mut *self.held.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Captured {
    /// Splits what came before the program began from what the program itself said; nothing of the
    /// latter when it did not begin.
    pub(super) fn split_at_begin(self, bytes_max: usize) -> (String, Option<Self>) {
        let mut found = self.bytes.windows(BEGUN.len());
        let Some(at) = found.position(|window| window == BEGUN) else {
            return (String::from_utf8_lossy(&self.bytes).into_owned(), None);
        };
        let before = String::from_utf8_lossy(&self.bytes[..at]).into_owned();
        let mut bytes = self.bytes;
        bytes.drain(..at + BEGUN.len());
        let cut = self.cut || bytes.len() > bytes_max;
        bytes.truncate(bytes_max);
        (before, Some(Self { bytes, cut }))
    }

    /// Returns true when the last words are that memory was refused, as interpreters and libraries
    /// say it.
    pub(super) fn ends_for_want_of_memory(&self) -> bool {
        let text = String::from_utf8_lossy(&self.bytes);
        let last = text.trim_end().lines().next_back().unwrap_or_default();
        last.starts_with("MemoryError")
            || ["std::bad_alloc", "Cannot allocate memory", "out of memory"]
                .iter()
                .any(|words| last.contains(words))
    }
}

/// As text, with a mark where it was cut.
impl Display for Captured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.bytes))?;
        if self.cut {
            write!(f, "\n[cut after {} bytes]", self.bytes.len())?;
        }
        Ok(())
    }
}

impl Debug for Captured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Debug::fmt(&self.to_string(), f)
    }
}

const CHUNK: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_too_long_is_cut_and_shown_so() {
        let captured = async |text: &[u8], bytes_max| {
            let capture = Capture::default();
            capture.clone().read(text, bytes_max, Arc::default()).await;
            capture.take()
        };
        assert_eq!(captured(b"abc", 3).await.to_string(), "abc");
        let cut = captured(b"abcd", 3).await;
        assert_eq!(cut.to_string(), "abc\n[cut after 3 bytes]");
        let long = captured(&vec![b'x'; 100_000], 70_000).await;
        assert_eq!((long.bytes.len(), long.cut), (70_000, true));
    }

    #[test]
    fn what_tools_say_is_not_the_programs() {
        let captured = |text: &str| Captured {
            bytes: text.into(),
            cut: false,
        };
        let begun = "odeon: the program begins\n";
        let (before, said) = captured(&format!("mount: x\n{begun}a{begun}")).split_at_begin(3);
        assert_eq!(before, "mount: x\n");
        assert_eq!(said.unwrap().to_string(), "aod\n[cut after 3 bytes]");
        let (before, said) = captured("mount: denied\n").split_at_begin(3);
        assert_eq!((before.as_str(), said), ("mount: denied\n", None));
    }
}

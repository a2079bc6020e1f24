//! Server-sent events out of bytes, however these are cut. Pure.
//!
//! Of the format (WHATWG HTML, section 9.2.6) the data is kept; names, ids and comments are not.

use super::error::DecodeError;

/// A stream that is being read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events {
    line: Vec<u8>,
    data: Option<Vec<u8>>,
    /// A carriage return came last: a line feed right after it ends no further line.
    returned: bool,
}

impl Events {
    /// Takes the next bytes; gives the data of the events that they complete.
    ///
    /// # Errors
    /// [`DecodeError::TooLong`]; the stream is of no use then.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<String>, DecodeError> {
        let mut complete = vec![];
        for &byte in bytes {
            let after_return = std::mem::take(&mut self.returned);
            match byte {
                b'\n' if after_return => {}
                b'\n' => complete.extend(self.end_line()),
                b'\r' => {
                    self.returned = true;
                    complete.extend(self.end_line());
                }
                byte => self.line.push(byte),
            }
            let held = self.line.len() + self.data.as_ref().map_or(0, Vec::len);
            if held > EVENT_BYTES_MAX {
                return Err(DecodeError::TooLong(EVENT_BYTES_MAX));
            }
        }
        Ok(complete)
    }

    fn end_line(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            let data = self.data.take()?;
            return Some(String::from_utf8_lossy(&data).into_owned());
        }
        let value = line.strip_prefix(b"data:")?;
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &mut self.data {
            Some(data) => {
                data.push(b'\n');
                data.extend_from_slice(value);
            }
            none => *none = Some(value.to_vec()),
        }
        None
    }
}

/// More than any event has: all tokens of a reply of a million, with their log-probabilities.
const EVENT_BYTES_MAX: usize = 64 << 20;

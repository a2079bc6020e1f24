//! Server-sent events out of the bytes of an answer.

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// Its name.
    pub(crate) name: String,
    /// Its lines, with line ends between.
    pub(crate) data: Vec<u8>,
}

/// Splits bytes into events, however they are cut.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    /// Bytes of a line that has not ended.
    line: Vec<u8>,
    name: String,
    data: Option<Vec<u8>>,
}

/// An event that is longer is none of ours.
const EVENT_MAX: usize = 256 << 20;

impl Parser {
    /// The events that are whole with these bytes; nothing when one is too long.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Option<Vec<Event>> {
        let mut events = vec![];
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.line.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.line);
            events.extend(self.take(line.strip_suffix(b"\r").unwrap_or(&line)));
        }
        self.line.extend_from_slice(bytes);
        let long = self.line.len() + self.data.as_ref().map_or(0, Vec::len);
        (long <= EVENT_MAX).then_some(events)
    }

    fn take(&mut self, line: &[u8]) -> Option<Event> {
        if line.is_empty() {
            let name = std::mem::take(&mut self.name);
            let data = self.data.take()?;
            return Some(Event { name, data });
        }
        let (field, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"event" => self.name = String::from_utf8_lossy(value).into_owned(),
            b"data" => match &mut self.data {
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(value);
                }
                None => self.data = Some(value.to_vec()),
            },
            // Comments keep the connection alive; ids are in the data as well.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = ": alive\n\nevent: snapshot\nid: 1-2\ndata: {\"a\":\ndata: 1}\n\n\
                          event: delta\r\ndata:{}\r\n\r\nevent: cut\ndata: no";

    fn events(pieces: &[&[u8]]) -> Vec<(String, String)> {
        let mut parser = Parser::default();
        let events = pieces.iter().flat_map(|piece| parser.feed(piece).unwrap());
        events
            .map(|event| (event.name, String::from_utf8(event.data).unwrap()))
            .collect()
    }

    #[test]
    fn events_are_the_same_however_their_bytes_are_cut() {
        let whole = events(&[STREAM.as_bytes()]);
        let named = |name: &str, data: &str| (name.to_owned(), data.to_owned());
        let expect = [named("snapshot", "{\"a\":\n1}"), named("delta", "{}")];
        assert_eq!(whole, expect, "what has not ended is no event");
        for size in 1..STREAM.len() {
            let pieces: Vec<_> = STREAM.as_bytes().chunks(size).collect();
            assert_eq!(events(&pieces), whole, "in pieces of {size}");
        }
    }

    #[test]
    fn a_line_without_an_end_does_not_fill_the_memory() {
        let mut parser = Parser::default();
        let piece = vec![b'x'; 1 << 20];
        assert!((0..300).any(|_| parser.feed(&piece).is_none()));
    }
}

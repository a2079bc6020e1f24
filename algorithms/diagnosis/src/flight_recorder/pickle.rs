//! Pickles of plain data, read without running what they name.
//!
//! A pickle is a program for a stack machine. Of its instructions those are carried out that build numbers, text,
//! lists, tuples and dictionaries; one that names a function or class is refused, but for the lists of numbers that
//! PyTorch's own writer wraps (`torch.jit._pickle build_intlist` and the like), which are taken as lists.

use serde_json::{Map, Number, Value};

use super::DumpError;

/// The deepest nesting of lists and dictionaries.
const DEPTH_MAX: usize = 64;

/// A thing on the stack.
#[derive(Clone, Debug)]
enum Item {
    Mark,
    /// Data, how deep it nests, and where it is kept to be taken again.
    Plain(Value, usize, Option<usize>),
    /// A function that makes a list of a list.
    ListMaker,
}

/// Reads the first pickle of a file.
pub(super) fn read(bytes: &[u8]) -> Result<Value, DumpError> {
    let mut machine = Machine {
        bytes,
        at: 0,
        stack: vec![],
        memo: vec![],
    };
    loop {
        let begin = machine.at;
        let code = machine.byte()?;
        if code == b'.' {
            let (value, _) = machine.pop()?;
            return Ok(value);
        }
        machine.carry_out(code, begin)?;
    }
}

/// Returns true for the first bytes of a pickle.
pub(super) fn is_one(bytes: &[u8]) -> bool {
    matches!(bytes, [0x80, 2..=5, ..])
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Item>,
    memo: Vec<Option<Item>>,
}

impl Machine<'_> {
    fn carry_out(&mut self, code: u8, begin: usize) -> Result<(), DumpError> {
        match code {
            // Protocol and frames.
            0x80 => drop(self.byte()?),
            0x95 => drop(self.take(8)?),
            b'(' => self.stack.push(Item::Mark),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.since_mark()?),
            b'N' => self.push(Value::Null),
            0x88 => self.push(Value::Bool(true)),
            0x89 => self.push(Value::Bool(false)),
            b'K' => {
                let number = self.unsigned(1)?;
                self.push(Value::from(number));
            }
            b'M' => {
                let number = self.unsigned(2)?;
                self.push(Value::from(number));
            }
            b'J' => {
                let number = self.unsigned(4)? as u32;
                self.push(Value::from(i64::from(number.cast_signed())));
            }
            0x8a => self.long()?,
            b'G' => {
                let bytes = self.take(8)?;
                let number = f64::from_be_bytes(bytes.try_into().unwrap_or_default());
                let number = Number::from_f64(number).map_or(Value::Null, Value::Number);
                self.push(number);
            }
            b'X' => self.text(4)?,
            0x8c => self.text(1)?,
            0x8d => self.text(8)?,
            // Bytes, as text where they are some.
            b'B' => self.text(4)?,
            b'C' => self.text(1)?,
            0x8e => self.text(8)?,
            b'T' => self.text(4)?,
            b'U' => self.text(1)?,
            b'c' | 0x93 => self.named(code, begin)?,
            b'R' => self.reduce(begin)?,
            b'q' | b'r' | 0x94 => self.memoize(code)?,
            b'h' | b'j' => self.recall(code, begin)?,
            _ => self.collect(code, begin)?,
        }
        Ok(())
    }

    /// Lists, tuples and dictionaries.
    fn collect(&mut self, code: u8, begin: usize) -> Result<(), DumpError> {
        match code {
            b']' | b')' => self.push(Value::Array(vec![])),
            b'}' => self.push(Value::Object(Map::new())),
            b'l' | b't' => {
                let items = self.since_mark()?;
                self.nest(items, |items| Ok(Value::Array(items)))?;
            }
            0x85..=0x87 => {
                let count = usize::from(code - 0x84);
                let mut items = vec![];
                for _ in 0..count {
                    items.insert(0, self.pop()?);
                }
                self.nest(items, |items| Ok(Value::Array(items)))?;
            }
            b'd' => {
                let items = self.since_mark()?;
                self.nest(items, |items| {
                    let mut map = Map::new();
                    set(&mut map, items)?;
                    Ok(Value::Object(map))
                })?;
            }
            b'a' => {
                let item = self.pop()?;
                self.append(vec![item], begin)?;
            }
            b'e' => {
                let items = self.since_mark()?;
                self.append(items, begin)?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set_items(vec![key, value], begin)?;
            }
            b'u' => {
                let items = self.since_mark()?;
                self.set_items(items, begin)?;
            }
            _ => {
                return Err(DumpError::Pickle {
                    at: begin,
                    why: format!("instruction {code:#04x} builds no plain data"),
                });
            }
        }
        Ok(())
    }

    fn nest(
        &mut self,
        items: Vec<(Value, usize)>,
        make: impl FnOnce(Vec<Value>) -> Result<Value, DumpError>,
    ) -> Result<(), DumpError> {
        let depth = self.deeper(&items)?;
        let value = make(items.into_iter().map(|it| it.0).collect())?;
        self.stack.push(Item::Plain(value, depth, None));
        Ok(())
    }

    /// The depth of what holds these.
    fn deeper(&self, items: &[(Value, usize)]) -> Result<usize, DumpError> {
        let depth = items.iter().map(|it| it.1).max().unwrap_or(0) + 1;
        match depth > DEPTH_MAX {
            true => Err(self.flaw("it nests too deep")),
            false => Ok(depth),
        }
    }

    fn append(&mut self, items: Vec<(Value, usize)>, begin: usize) -> Result<(), DumpError> {
        let deeper = self.deeper(&items)?;
        let Some(Item::Plain(Value::Array(list), depth, _)) = self.stack.last_mut() else {
            return Err(DumpError::Pickle {
                at: begin,
                why: "it appends to what is no list".to_owned(),
            });
        };
        list.extend(items.into_iter().map(|it| it.0));
        *depth = deeper.max(*depth);
        Ok(())
    }

    fn set_items(&mut self, items: Vec<(Value, usize)>, begin: usize) -> Result<(), DumpError> {
        let deeper = self.deeper(&items)?;
        let Some(Item::Plain(Value::Object(map), depth, _)) = self.stack.last_mut() else {
            return Err(DumpError::Pickle {
                at: begin,
                why: "it sets items of what is no dictionary".to_owned(),
            });
        };
        set(map, items.into_iter().map(|it| it.0).collect())?;
        *depth = deeper.max(*depth);
        Ok(())
    }

    /// A function by its name.
    fn named(&mut self, code: u8, begin: usize) -> Result<(), DumpError> {
        let (module, name) = match code {
            b'c' => (self.line()?, self.line()?),
            _ => {
                let name = self.pop()?.0;
                let module = self.pop()?.0;
                let text = |value: Value| value.as_str().unwrap_or_default().to_owned();
                (text(module), text(name))
            }
        };
        let is_list = module == "torch.jit._pickle"
            && matches!(
                &*name,
                "build_intlist" | "build_doublelist" | "build_boollist"
            );
        if !is_list {
            return Err(DumpError::Pickle {
                at: begin,
                why: format!("it wants to call `{module}.{name}`, which is not done"),
            });
        }
        self.stack.push(Item::ListMaker);
        Ok(())
    }

    /// A call of a function with a tuple.
    fn reduce(&mut self, begin: usize) -> Result<(), DumpError> {
        let (arguments, depth) = self.pop()?;
        match (self.stack.pop(), arguments) {
            (Some(Item::ListMaker), Value::Array(mut of)) if of.len() == 1 => {
                self.stack.push(Item::Plain(of.remove(0), depth, None));
                Ok(())
            }
            _ => Err(DumpError::Pickle {
                at: begin,
                why: "it calls what is no list".to_owned(),
            }),
        }
    }

    fn memoize(&mut self, code: u8) -> Result<(), DumpError> {
        let place = match code {
            b'q' => self.unsigned(1)? as usize,
            b'r' => self.unsigned(4)? as usize,
            _ => self.memo.len(),
        };
        // Each is put by an instruction of two bytes or more.
        if place > self.bytes.len() {
            return Err(self.flaw("it keeps more than it has"));
        }
        if self.memo.len() <= place {
            self.memo.resize(place + 1, None);
        }
        // A list is filled after it was kept: it is there when it is whole.
        self.memo[place] = match self.stack.last_mut() {
            Some(Item::Plain(Value::Array(_) | Value::Object(_), _, kept)) => {
                *kept = Some(place);
                None
            }
            Some(item) => Some(item.clone()),
            None => None,
        };
        Ok(())
    }

    fn recall(&mut self, code: u8, begin: usize) -> Result<(), DumpError> {
        let place = self.unsigned(if code == b'h' { 1 } else { 4 })? as usize;
        // A list that is whole may still lie on the stack; one that is not has a mark above it.
        let on_stack = || {
            let is_it = |it: &Item| matches!(it, Item::Plain(_, _, Some(kept)) if *kept == place);
            let found = self.stack.iter().rposition(is_it)?;
            match (&self.stack[found], self.stack.get(found + 1)) {
                (_, Some(Item::Mark)) => None,
                (Item::Plain(value, depth, _), _) => Some(Item::Plain(value.clone(), *depth, None)),
                _ => None,
            }
        };
        let kept = self.memo.get(place).cloned().flatten().or_else(on_stack);
        let kept = kept.ok_or_else(|| DumpError::Pickle {
            at: begin,
            why: "it takes what it has not kept".to_owned(),
        })?;
        self.stack.push(kept);
        Ok(())
    }

    /// A whole number of as many bytes as it says.
    fn long(&mut self) -> Result<(), DumpError> {
        let len = self.byte()? as usize;
        let bytes = self.take(len)?;
        if len > 8 {
            return Err(self.flaw("a number has more than 64 bits"));
        }
        let fill = match bytes.last() {
            Some(last) if last & 0x80 != 0 => 0xff,
            _ => 0,
        };
        let mut whole = [fill; 8];
        whole[..len].copy_from_slice(bytes);
        self.push(Value::from(i64::from_le_bytes(whole)));
        Ok(())
    }

    fn text(&mut self, length: usize) -> Result<(), DumpError> {
        let length = self.unsigned(length)? as usize;
        let bytes = self.take(length)?;
        let text = String::from_utf8_lossy(bytes).into_owned();
        self.push(Value::String(text));
        Ok(())
    }

    fn line(&mut self) -> Result<String, DumpError> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|it| *it == b'\n');
        let end = end.ok_or_else(|| self.flaw("it is cut short"))?;
        let line = String::from_utf8_lossy(&rest[..end]).into_owned();
        self.at += end + 1;
        Ok(line)
    }

    fn push(&mut self, value: Value) {
        self.stack.push(Item::Plain(value, 0, None));
    }

    fn pop(&mut self) -> Result<(Value, usize), DumpError> {
        let item = self.stack.pop();
        let item = item.ok_or_else(|| self.flaw("it takes more than it has"))?;
        self.whole(item)
    }

    fn since_mark(&mut self) -> Result<Vec<(Value, usize)>, DumpError> {
        let mark = self.stack.iter().rposition(|it| matches!(it, Item::Mark));
        let mark = mark.ok_or_else(|| self.flaw("it takes more than it has"))?;
        let items = self.stack.split_off(mark).into_iter().skip(1);
        items.map(|item| self.whole(item)).collect()
    }

    /// Data that is whole now, since it goes into other data.
    fn whole(&mut self, item: Item) -> Result<(Value, usize), DumpError> {
        let Item::Plain(value, depth, place) = item else {
            return Err(self.flaw("a function or a mark is where data belongs"));
        };
        if let Some(place) = place {
            self.memo[place] = Some(Item::Plain(value.clone(), depth, None));
        }
        Ok((value, depth))
    }

    fn byte(&mut self) -> Result<u8, DumpError> {
        Ok(self.take(1)?[0])
    }

    fn unsigned(&mut self, bytes: usize) -> Result<u64, DumpError> {
        let taken = self.take(bytes)?;
        let mut whole = [0; 8];
        whole[..bytes].copy_from_slice(taken);
        Ok(u64::from_le_bytes(whole))
    }

    fn take(&mut self, count: usize) -> Result<&[u8], DumpError> {
        let end = self.at.checked_add(count);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let Some(taken) = taken else {
            return Err(self.flaw("it is cut short"));
        };
        self.at += count;
        Ok(taken)
    }

    fn flaw(&self, why: &str) -> DumpError {
        DumpError::Pickle {
            at: self.at,
            why: why.to_owned(),
        }
    }
}

/// Keys and values by turns.
fn set(map: &mut Map<String, Value>, items: Vec<Value>) -> Result<(), DumpError> {
    let mut items = items.into_iter();
    while let Some(key) = items.next() {
        let key = match key {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let Some(value) = items.next() else {
            return Err(DumpError::Pickle {
                at: 0,
                why: format!("key `{key}` has no value"),
            });
        };
        map.insert(key, value);
    }
    Ok(())
}

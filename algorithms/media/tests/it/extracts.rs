//! The extracts that `tests/golden/make.py` wrote down.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

pub(crate) fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

pub(crate) fn json(name: &str) -> Value {
    serde_json::from_slice(&fs::read(path(name)).unwrap()).unwrap()
}

/// The file of a picture.
pub(crate) fn picture(name: &str) -> Vec<u8> {
    fs::read(path("pictures").join(name)).unwrap()
}

/// The names of all files of pictures.
pub(crate) fn pictures() -> Vec<String> {
    let entries = fs::read_dir(path("pictures")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// An array with its shape and what else is known of it.
pub(crate) struct Array {
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) more: Value,
}

impl Array {
    pub(crate) fn floats(&self) -> Vec<f32> {
        let (numbers, _) = self.bytes.as_chunks::<4>();
        numbers
            .iter()
            .map(|number| f32::from_le_bytes(*number))
            .collect()
    }
}

/// Arrays of one file by their names. `size` is that of a number in bytes.
pub(crate) fn arrays(name: &str, size: usize) -> BTreeMap<String, Array> {
    let all = fs::read(path(&format!("{name}.bin"))).unwrap();
    let index = json(&format!("{name}.json"));
    let of = |(name, entry): (&String, &Value)| {
        let shape = numbers(&entry["shape"]);
        let at = entry["at"].as_u64().unwrap() as usize;
        let length = shape.iter().product::<usize>() * size;
        let array = Array {
            shape,
            bytes: all[at..at + length].to_vec(),
            more: entry.clone(),
        };
        (name.clone(), array)
    };
    index.as_object().unwrap().iter().map(of).collect()
}

pub(crate) fn numbers(value: &Value) -> Vec<usize> {
    let numbers = value.as_array().unwrap().iter();
    numbers
        .map(|number| number.as_u64().unwrap() as usize)
        .collect()
}

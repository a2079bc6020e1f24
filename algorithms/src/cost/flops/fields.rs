//! The fields of a `config.json`, with complaints by name.

use serde_json::Value;

use super::FlopsError;

/// The object with the fields of one part of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    pub(super) family: &'a str,
    object: &'a Value,
}

impl<'a> Fields<'a> {
    pub(super) const fn new(family: &'a str, object: &'a Value) -> Self {
        Self { family, object }
    }

    /// The part with this name, where there is one.
    pub(super) fn part(&self, name: &str) -> Option<Self> {
        let object = self.object.get(name).filter(|it| it.is_object())?;
        Some(Self { object, ..*self })
    }

    /// A field that must be there.
    pub(super) fn number(&self, field: &'static str) -> Result<f64, FlopsError> {
        match self.whole(field)? {
            Some(number) => Ok(number as f64),
            None => Err(self.wrong(field, "a whole number above 0")),
        }
    }

    /// A field that has a default.
    pub(super) fn number_or(&self, field: &'static str, usual: f64) -> Result<f64, FlopsError> {
        Ok(self.whole(field)?.map_or(usual, |number| number as f64))
    }

    /// A whole number above 0, where the field is there and not null.
    pub(super) fn whole(&self, field: &'static str) -> Result<Option<u64>, FlopsError> {
        let Some(value) = self.object.get(field).filter(|it| !it.is_null()) else {
            return Ok(None);
        };
        let number = value.as_u64().filter(|it| (1..=MOST).contains(it));
        let wanted = "a whole number from 1 to 2^40";
        number.map(Some).ok_or_else(|| self.wrong(field, wanted))
    }

    /// The number of elements of a list, 0 where there is none.
    pub(super) fn length(&self, field: &str) -> f64 {
        let list = self.object.get(field).and_then(Value::as_array);
        list.map_or(0.0, |list| list.len() as f64)
    }

    pub(super) fn is_true(&self, field: &str) -> bool {
        self.object.get(field).and_then(Value::as_bool) == Some(true)
    }

    /// The kinds of all layers, where they are named: as many as there are layers.
    pub(super) fn layer_types(&self, layers: usize) -> Result<Option<Vec<&'a str>>, FlopsError> {
        let Some(value) = self.object.get("layer_types").filter(|it| !it.is_null()) else {
            return Ok(None);
        };
        let list = value.as_array().map(|list| list.iter().map(Value::as_str));
        let names: Option<Vec<&str>> = list.and_then(Iterator::collect);
        let names = names.ok_or_else(|| self.wrong("layer_types", "a list of names"))?;
        if names.len() != layers {
            return Err(FlopsError::Layers {
                named: names.len(),
                layers,
            });
        }
        Ok(Some(names))
    }

    pub(super) fn wrong(&self, field: &'static str, wanted: &'static str) -> FlopsError {
        FlopsError::Field {
            family: self.family.to_owned(),
            field,
            wanted,
        }
    }
}

/// No width, count or vocabulary of a model comes near it.
const MOST: u64 = 1 << 40;

//! Numbers of reports that may be none: the loss of a run whose weights are bad. JSON has no word for them but
//! `null`, which is read as what is not a number; other formats have them as they are.
//!
//! For `#[serde(with = "crate::number")]`, and `crate::number::each` for those of a map.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Writes a number.
///
/// # Errors
/// Those of the format.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
pub(crate) fn serialize<S: Serializer>(number: &f64, to: S) -> Result<S::Ok, S::Error> {
    number.serialize(to)
}

/// Reads a number, or what is none.
///
/// # Errors
/// Those of the format.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    if from.is_human_readable() {
        let number = Option::<f64>::deserialize(from)?;
        return Ok(number.unwrap_or(f64::NAN));
    }
    f64::deserialize(from)
}

/// The same of each number of a map by name.
pub(crate) mod each {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize)]
    struct Number(#[serde(with = "super")] f64);

    /// Writes the numbers.
    ///
    /// # Errors
    /// Those of the format.
    pub(crate) fn serialize<S: Serializer>(
        numbers: &BTreeMap<String, f64>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        numbers.serialize(to)
    }

    /// Reads the numbers.
    ///
    /// # Errors
    /// Those of the format.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<String, f64>, D::Error> {
        let read = BTreeMap::<String, Number>::deserialize(from)?;
        Ok(read.into_iter().map(|(name, it)| (name, it.0)).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct Told {
        #[serde(with = "super")]
        loss: f64,
        #[serde(with = "super::each")]
        sources: BTreeMap<String, f64>,
    }

    #[test]
    fn what_is_no_number_comes_back_as_such() {
        let told = Told {
            loss: f64::NAN,
            sources: [("a".to_owned(), f64::INFINITY), ("b".to_owned(), 1.5)].into(),
        };
        let text = serde_json::to_string(&told).unwrap();
        assert_eq!(text, r#"{"loss":null,"sources":{"a":null,"b":1.5}}"#);
        let read: Told = serde_json::from_str(&text).unwrap();
        assert!(read.loss.is_nan() && read.sources["a"].is_nan());
        assert_eq!(read.sources["b"], 1.5);
        assert!(
            serde_json::from_str::<Told>(r#"{"sources":{}}"#).is_err(),
            "no loss"
        );
        let bytes = odeon::codec::encode(&told).unwrap();
        let read: Told = odeon::codec::decode(&bytes).unwrap();
        assert!(read.loss.is_nan() && read.sources["a"].is_infinite());
    }
}

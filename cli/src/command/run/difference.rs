//! The first field in which two recipes differ.

use serde_json::{Map, Value};

/// The first field that differs, and both values. No fields means all of them.
pub(super) fn difference(
    before: &Value,
    now: &Value,
    fields: &[&str],
) -> Option<(String, Value, Value)> {
    let (Some(old), Some(new)) = (before.as_object(), now.as_object()) else {
        return None;
    };
    let counts = |name: &String| fields.is_empty() || fields.contains(&name.as_str());
    let mut names: Vec<_> = new.keys().chain(old.keys()).filter(|n| counts(n)).collect();
    names.sort_unstable();
    for name in names {
        let (before, now) = (&before[name], &now[name]);
        match (before, now) {
            _ if before == now => {}
            (Value::Object(old), Value::Object(new)) => {
                return match (chosen(old), chosen(new)) {
                    // Another one was chosen, whose settings compare with nothing.
                    (Some(old), Some(new)) if old != new => {
                        Some((name.clone(), Value::from(old), Value::from(new)))
                    }
                    _ => difference(before, now, &[]),
                };
            }
            (Value::Object(_), _) | (_, Value::Object(_)) => {
                let named = |value: &Value| match value {
                    Value::Null => Value::from("absent"),
                    _ => Value::from("there"),
                };
                return Some((format!("task.{name}"), named(before), named(now)));
            }
            _ => return Some((name.clone(), before.clone(), now.clone())),
        }
    }
    None
}

/// The word of a table that is a choice: its only key.
fn chosen(table: &Map<String, Value>) -> Option<&str> {
    let mut words = table.keys();
    words
        .next()
        .filter(|_| words.next().is_none())
        .map(String::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_difference_is_found_in_a_table_or_below_it() {
        let before = json!({"a": 1, "sums": {"b": 2, "c": 3}});
        assert_eq!(difference(&before, &before, &[]), None);
        let now = json!({"a": 1, "sums": {"b": 2, "c": 4}});
        let (field, was, is) = difference(&before, &now, &[]).unwrap();
        assert_eq!((field.as_str(), was, is), ("c", json!(3), json!(4)));
        assert_eq!(difference(&before, &now, &["a"]), None);
        let other = json!({"a": 1, "countdown": {}});
        assert_eq!(
            difference(&before, &other, &[]).unwrap().0,
            "task.countdown"
        );
    }

    #[test]
    fn another_choice_is_told_by_its_word_and_another_setting_by_its_name() {
        let of = |choice| json!({"steps": 1, "optimizer": choice});
        let lion = of(json!({"lion": {"beta1": 0.5, "beta2": 0.75}}));
        let fields = &["optimizer"];
        let adamw = of(json!({"adamw": {"beta1": 0.5}}));
        let (field, was, is) = difference(&lion, &adamw, fields).unwrap();
        assert_eq!(
            (field.as_str(), was, is),
            ("optimizer", json!("lion"), json!("adamw"))
        );
        let other = of(json!({"lion": {"beta1": 0.5, "beta2": 0.875}}));
        let (field, was, is) = difference(&lion, &other, fields).unwrap();
        assert_eq!(
            (field.as_str(), was, is),
            ("beta2", json!(0.75), json!(0.875))
        );
        assert_eq!(difference(&lion, &lion, fields), None);
    }
}

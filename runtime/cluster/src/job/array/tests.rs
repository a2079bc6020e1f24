//! Arrays as people write them.

use proptest::prelude::*;

use super::*;

#[test]
fn arrays_are_read_as_slurm_reads_them() {
    let check = |text: &str, indices: &[u32], at_once: Option<u32>| {
        let array: ArraySpec = text.parse().unwrap();
        assert_eq!(array.indices(), indices, "{text}");
        assert_eq!(array.at_once(), at_once, "{text}");
        assert_eq!(array.to_string(), text);
    };
    check("0-3", &[0, 1, 2, 3], None);
    check("0-3%2", &[0, 1, 2, 3], Some(2));
    check("1,3,7", &[1, 3, 7], None);
    check("0-10:2", &[0, 2, 4, 6, 8, 10], None);
    check("0-10:4%1", &[0, 4, 8], Some(1));
    check("9,1-3,20-24:2%3", &[9, 1, 2, 3, 20, 22, 24], Some(3));
    check("5", &[5], None);
    check("5-5", &[5], None);
    check("0-999", &(0..=999).collect::<Vec<_>>(), None);
}

#[test]
fn what_is_no_array_is_refused_by_its_place() {
    let check = |text: &str, expect: &str| {
        let error = text.parse::<ArraySpec>().unwrap_err().to_string();
        assert!(error.contains(&format!("`{text}`")), "{error}");
        assert!(error.contains(expect), "{text}: {error}");
    };
    check("", "character 1, and there is nothing");
    check("a", "character 1, and there is `a`");
    check("0-", "character 3, and there is nothing");
    check("0-x", "character 3, and there is `x`");
    check("0..9", "character 2, and there is `.`");
    check("1,,2", "character 3, and there is `,`");
    check("1,2,", "character 5, and there is nothing");
    check(" 1", "character 1, and there is ` `");
    check("-1", "character 1, and there is `-`");
    check("0-9%", "character 5, and there is nothing");
    check("0-9%8 ", "character 6, and there is ` `");
    check("0-9%8,10", "character 6, and there is `,`");
    check("1:2", "character 2, and there is `:`");
    check("0-1000000", "character 3, and there is `1000000`");
    check("99999999999999999999", "character 1");
    check("4-2", "4-2 at character 1 goes down: write 2-4");
    check("1,4-2", "character 3 goes down");
    check("0-9:0", "the step at character 5 is 0");
    check("0-9%0", "the number at once at character 5 is 0");
    check("1-3,2", "index 2 at character 5 is there already");
    check("0-1000", "more than 1000 jobs");
    check("é", "character 1, and there is `é`");
    check("1é", "character 2, and there is `é`");
}

proptest! {
    /// Whatever it is, it is read or refused, and read again from what is kept of it.
    #[test]
    fn any_text_is_an_array_or_says_where_it_is_none(text in "[0-9,:%a -]{0,12}") {
        match text.parse::<ArraySpec>() {
            Ok(array) => {
                prop_assert!((1..=ARRAY_MAX).contains(&array.count()));
                let kept = serde_json::to_string(&array).unwrap();
                let again: ArraySpec = serde_json::from_str(&kept).unwrap();
                prop_assert_eq!(again, array);
            }
            Err(error) => {
                let said = error.to_string();
                prop_assert!(said.contains(&text), "{}", said);
            }
        }
    }
}

//! Descriptions that the library takes and then panics over.

use serde_json::Value;

use super::description;
use crate::tokenizer::error::TokenizerError;

/// Checks that templates of a post-processor name texts that there are, and tokens that it describes.
pub(super) fn post_processor(json: &str) -> Result<(), TokenizerError> {
    // What is no JSON is told by whoever reads it.
    let json: Value = serde_json::from_str(json).unwrap_or_default();
    let processor = &json["post_processor"];
    let below = processor["processors"].as_array().into_iter().flatten();
    for processor in below.chain([processor]) {
        for template in ["single", "pair"] {
            let pieces = processor[template].as_array().into_iter().flatten();
            for piece in pieces {
                if template == "single" && piece["Sequence"]["id"] == "B" {
                    return Err(description(
                        "tokenizer.json: the template `single` of `post_processor` puts a second \
                         text there"
                            .to_owned(),
                    ));
                }
                let Some(id) = piece["SpecialToken"]["id"].as_str() else {
                    continue;
                };
                if processor["special_tokens"].get(id).is_none() {
                    return Err(description(format!(
                        "tokenizer.json: the template `{template}` of `post_processor` puts {id:?} \
                         there, which its `special_tokens` do not have"
                    )));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_template_names_what_is_there() {
        let said = |pieces: Value| {
            let template = json!({"type": "TemplateProcessing", "single": pieces, "pair": [],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}});
            let several = json!({"type": "Sequence", "processors": [template.clone()]});
            [template, several].map(|processor| {
                let json = json!({ "post_processor": processor }).to_string();
                post_processor(&json).map_err(|error| error.to_string())
            })
        };
        let token = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
        let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
        assert_eq!(said(json!([token("<s>"), text("A")])), [Ok(()), Ok(())]);
        for error in said(json!([token("</s>"), text("A")])) {
            assert!(
                error
                    .unwrap_err()
                    .contains("`single` of `post_processor` puts \"</s>\"")
            );
        }
        for error in said(json!([text("A"), text("B")])) {
            assert!(error.unwrap_err().contains("puts a second text there"));
        }
        assert!(post_processor("no JSON").is_ok());
    }
}

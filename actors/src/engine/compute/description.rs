//! A model as it lies on the disk: what would be used of it, and what is odd.

use std::collections::BTreeMap;
use std::path::Path;

use odeon::Failure;
use odeon_algorithms::tokenizer::{Message, Tokenizer};
use odeon_algorithms::weights::{Gguf, ModelFields, ModelFolder, gguf_fields};

use super::{is_gguf, read_tokenizer, stored::StoredModel};

/// The descriptions of a model and of its tokenizer, without a look at the numbers.
#[derive(Clone, Debug)]
pub struct ModelDescription {
    /// The architecture.
    pub fields: ModelFields,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// Parameters stored in each type.
    pub stored: BTreeMap<String, usize>,
    /// Oddities, and what is made of each.
    pub notes: Vec<String>,
}

impl ModelDescription {
    /// Reads the descriptions in a file, a folder, or the folder of a checkpoint.
    ///
    /// # Errors
    /// Something is not there, broken, or of an unknown kind.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        Self::beside(path, read_tokenizer(path)?)
    }

    /// The same of a model that has another tokenizer than its own.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn beside(path: &Path, tokenizer: Tokenizer) -> Result<Self, Failure> {
        let mut stored = BTreeMap::new();
        let (fields, mut notes) = if is_gguf(path) {
            let gguf = Gguf::open(path).map_err(Failure::error)?;
            for tensor in gguf.tensors().values() {
                let elements: usize = tensor.shape.iter().product();
                *stored.entry(format!("{:?}", tensor.encoding)).or_default() += elements;
            }
            (gguf_fields(&gguf).map_err(Failure::error)?, vec![])
        } else if let Some(model) = StoredModel::open(path)? {
            let fields = model.fields()?;
            let shapes = fields.tensor_shapes().into_iter();
            let elements = shapes.map(|(_, shape)| shape.iter().product::<usize>());
            stored.insert("F32".to_owned(), elements.sum());
            (fields, vec![])
        } else {
            let folder = ModelFolder::open(path).map_err(Failure::error)?;
            stored.clone_from(folder.stored());
            (folder.fields().clone(), folder.notes().to_vec())
        };
        notes.extend(tokenizer.notes().iter().cloned());
        notes.extend(ids_beyond(&fields, &tokenizer));
        if tokenizer.chat().is_some()
            && let Err(error) = tokenizer.encode_chat(&[Message::user("Hello")])
        {
            notes.push(error.to_string());
        }
        Ok(Self {
            fields,
            tokenizer,
            stored,
            notes,
        })
    }

    /// Checks that every token that training writes and that ends a reply has a row.
    ///
    /// # Errors
    /// The token that has none.
    pub fn trains(&self) -> Result<(), Failure> {
        match ids_beyond(&self.fields, &self.tokenizer).next() {
            None => Ok(()),
            Some(beyond) => Err(Failure::error(beyond)),
        }
    }
}

/// Ids that the tokenizer gives and that the embedding has no row for.
fn ids_beyond<'a>(
    fields: &'a ModelFields,
    tokenizer: &'a Tokenizer,
) -> impl Iterator<Item = String> + 'a {
    let rows = fields.vocabulary;
    let ends = tokenizer
        .ends()
        .iter()
        .filter(move |end| **end as usize >= rows);
    let ends = ends.map(move |end| {
        format!(
            "token {end}, which ends a reply, is beyond the embedding of {rows} rows: no reply can \
             end with it"
        )
    });
    let ids = tokenizer.vocabulary();
    let text =
        (ids > rows && !tokenizer.ends().iter().any(|end| *end as usize + 1 == ids)).then(|| {
            format!(
                "the tokenizer gives ids up to {}, beyond the embedding of {rows} rows",
                ids - 1
            )
        });
    ends.chain(text)
}

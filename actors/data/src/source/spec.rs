//! The spec of a source as a run gives it: a `[[source]]` of its recipe.

use std::collections::BTreeMap;

use odeon_algorithms::tokenizer::LearntTurns;
use serde::{Deserialize, Serialize};

pub use super::format::csv::Csv;

/// A source as a recipe describes it.
///
/// ```
/// # use odeon_data::source::{Format, SourceSpec};
/// let spec: SourceSpec = serde_json::from_str(
///     r#"{"name": "sums", "path": "data/*.jsonl.zst", "format": {"jsonl": {"text": "text"}}}"#,
/// )?;
/// assert_eq!(spec.context, 1024);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceSpec {
    /// The name of it for people.
    pub name: String,
    /// Where its files are: a file, a folder, or a pattern (`*` and `?` within a name, `**` for any
    /// folders), as a path or as `s3://bucket/…`.
    pub path: String,
    /// The format of its files.
    pub format: Format,
    /// The compression of its files.
    #[serde(default)]
    pub compression: Compression,
    /// Which of its blocks are read.
    #[serde(default)]
    pub part: Part,
    /// In which order its records come.
    #[serde(default)]
    pub order: Order,
    /// The seed of the order and of what transforms do by chance.
    #[serde(default)]
    pub seed: u64,
    /// About how many bytes of a file are read at once, and stay together in the order.
    #[serde(default = "block_bytes")]
    pub block_bytes: u64,
    /// Number of blocks that have their records mixed: a cell.
    #[serde(default = "cell_blocks")]
    pub cell_blocks: u32,
    /// The longest sample, in tokens.
    #[serde(default = "context")]
    pub context: u32,
    /// The rule for a document that is longer than that.
    #[serde(default)]
    pub longer: Longer,
    /// The rule for a record that cannot be read.
    #[serde(default)]
    pub on_bad: OnBad,
    /// So many records of a cell may be skipped at least, when bad ones are.
    #[serde(default = "bad_records")]
    pub bad_records: u32,
    /// Such a part of the records of a cell may be skipped, if that is more.
    #[serde(default = "bad_part")]
    pub bad_part: f64,
    /// The form that pictures get.
    #[serde(default)]
    pub pictures: Pictures,
    /// Options of the storage, as `object_store` names them: `endpoint`, `region`, `allow_http`. Those
    /// of the environment (`AWS_…`) hold where this says nothing; keep secrets there.
    #[serde(default)]
    pub storage: BTreeMap<String, String>,
}

/// Which blocks of a source are read: so that some can be held out of training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// All.
    #[default]
    All,
    /// All but one of so many, which is at least 2.
    AllBut {
        /// One of how many.
        one_of: u32,
    },
    /// These alone.
    HeldOut {
        /// One of how many.
        one_of: u32,
    },
}

impl Part {
    /// Number of blocks of this part, of so many in all.
    #[must_use]
    pub fn count(self, blocks: u32) -> u32 {
        match self {
            Self::All => blocks,
            Self::AllBut { one_of } => blocks - blocks / one_of.max(2),
            Self::HeldOut { one_of } => blocks / one_of.max(2),
        }
    }

    /// Which block the one at this place among them is.
    #[must_use]
    pub fn block(self, place: u32) -> u32 {
        match self {
            Self::All => place,
            Self::AllBut { one_of } => place + place / (one_of.max(2) - 1),
            Self::HeldOut { one_of } => place * one_of.max(2) + one_of.max(2) - 1,
        }
    }
}

/// The format of files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Format {
    /// Rows of a table, with commas, tabs or another sign between fields.
    Csv(Csv),
    /// A JSON object a line.
    Jsonl(Fields),
    /// Rows of a Parquet file. A row group is a block.
    Parquet(Fields),
    /// Text in UTF-8.
    Text(Text),
    /// Tar files whose members of one name, up to its first dot, are a sample.
    Webdataset(Webdataset),
    /// Folders of pictures.
    Images(Images),
    /// Pictures in one file and their classes in another, in the form of MNIST.
    Idx(Idx),
}

impl Format {
    /// The turns of conversations that are predicted.
    pub(crate) fn learn(&self) -> LearntTurns {
        self.fields()
            .map_or_else(LearntTurns::default, |it| it.learn)
    }

    /// True where records are conversations, which a chat template renders.
    #[must_use]
    pub fn has_conversations(&self) -> bool {
        self.fields().is_some_and(|it| it.messages.is_some())
    }

    fn fields(&self) -> Option<&Fields> {
        match self {
            Self::Jsonl(fields) | Self::Parquet(fields) => Some(fields),
            _ => None,
        }
    }
}

/// Which fields of a record are read. Names with dots lead into nested ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fields {
    /// The text of a document, all of which is predicted. `text` where nothing else is said.
    pub text: Option<String>,
    /// The text that is read and not predicted; needs a `response`.
    pub prompt: Option<String>,
    /// The text that is predicted after a `prompt`.
    pub response: Option<String>,
    /// The bytes of a picture, before the text (Parquet alone).
    pub image: Option<String>,
    /// A conversation, instead of a text: an array of messages with `role` and `content`, or `from`
    /// and `value`, or JSON of it. The tokenizer's chat template renders it.
    pub messages: Option<String>,
    /// The tools that the model is told of in a conversation: an array of functions in JSON schema,
    /// or JSON of it. A record may have none.
    pub tools: Option<String>,
    /// The turns of conversations that are predicted.
    pub learn: LearntTurns,
}

/// The documents of a file of text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Text {
    /// The unit of text that is a document.
    pub document: Document,
    /// The marks of the text that are taken away.
    pub markup: Markup,
    /// Files of a folder are taken whose names end so; all where nothing is said.
    pub suffixes: Vec<String>,
}

/// The unit of text that is a document in a file of text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Document {
    /// The whole file.
    #[default]
    File,
    /// Each line that is not blank.
    Line,
    /// So many lines that are not blank.
    Lines(u32),
    /// The text between blank lines.
    Paragraph,
    /// The text from a line on that is not indented and follows a blank line, as entries of a
    /// dictionary do.
    Headed,
    /// The text between these lines, which are none of it.
    Separated(String),
}

/// Marks that a text has besides its words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Markup {
    /// None.
    #[default]
    None,
    /// `word/tag`, as in the Brown corpus: tags are taken away, and signs join the word before them.
    Tagged,
}

/// Members of tar files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Webdataset {
    /// Endings of the member with the picture. Without any, samples are text.
    pub image: Vec<String>,
    /// Endings of the member with the text.
    pub text: Vec<String>,
    /// Where the text's member ends with `json`: the field that has the text.
    pub field: String,
}

/// Files of pictures, with what is said of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Images {
    /// Where the captions are.
    pub captions: Captions,
}

/// Where the captions of pictures are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Captions {
    /// In a file beside each picture that has the picture's name but this ending. Its first line.
    Beside(String),
    /// In one file: an array of objects, a line of JSON each, or one object from name to caption.
    /// Pictures that it does not name are left out.
    Listed {
        /// That file.
        path: String,
        /// The field with the picture's path, relative to the source's.
        image: String,
        /// The field with the caption.
        caption: String,
    },
}

/// Files in the form of MNIST. The source's path is that of the pictures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Idx {
    /// The file with the classes.
    pub labels: String,
    /// The names of the classes; their numbers where there is none.
    #[serde(default)]
    pub names: Vec<String>,
}

/// The compression of files. Compressed files are decompressed once, into the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// As their names say: `.gz`, `.dz` and `.tgz`, `.zst`.
    #[default]
    Auto,
    /// Not at all.
    None,
    /// Gzip.
    Gzip,
    /// Zstandard.
    Zstd,
}

/// The order of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Another one each epoch, which follows from the seed.
    #[default]
    Shuffled,
    /// That of the files.
    Kept,
}

/// The rule for a document that is longer than the context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Longer {
    /// It becomes several samples. The first token of each is the last of the one before, so that each
    /// token of the document is predicted once.
    #[default]
    Cut,
    /// The tokens beyond are left out.
    Truncate,
    /// It is skipped.
    Drop,
}

/// The rule for a record that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnBad {
    /// It is skipped, and said so; a cell that has too many of them fails.
    #[default]
    Skip,
    /// Its cell fails.
    Fail,
}

/// The form that pictures get: their sides are brought to multiples of two patches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pictures {
    /// Pixels along the side of a patch.
    pub patch: u16,
    /// The most visual tokens of a picture; larger ones are made smaller.
    pub tokens: u32,
    /// The least part of a picture's area that is cut out by chance; 1 cuts nothing.
    pub crop: f64,
    /// The probability that a picture is mirrored, from 0 to 1.
    pub mirror: f64,
}

impl Default for Webdataset {
    fn default() -> Self {
        let all = |endings: &[&str]| endings.iter().map(|&ending| ending.into()).collect();
        Self {
            image: all(&["png", "jpg", "jpeg", "webp"]),
            text: all(&["txt", "json", "cls"]),
            field: "text".into(),
        }
    }
}

impl Default for Captions {
    fn default() -> Self {
        Self::Beside("txt".into())
    }
}

impl Default for Pictures {
    fn default() -> Self {
        Self {
            patch: 14,
            tokens: 256,
            crop: 1.0,
            mirror: 0.0,
        }
    }
}

impl SourceSpec {
    /// A source with everything as it is where nothing is said.
    #[must_use]
    pub fn new(name: impl Into<String>, path: impl Into<String>, format: Format) -> Self {
        Self {
            name: name.into(),
            path: path.into(),
            format,
            compression: Compression::default(),
            part: Part::default(),
            order: Order::default(),
            seed: 0,
            block_bytes: block_bytes(),
            cell_blocks: cell_blocks(),
            context: context(),
            longer: Longer::default(),
            on_bad: OnBad::default(),
            bad_records: bad_records(),
            bad_part: bad_part(),
            pictures: Pictures::default(),
            storage: BTreeMap::new(),
        }
    }

    /// Says what of the specification cannot be.
    ///
    /// # Errors
    /// A sentence.
    pub fn check(&self) -> Result<(), String> {
        let part = |value: f64| (0.0..=1.0).contains(&value);
        if self.name.is_empty() {
            return Err("a source needs a name".into());
        }
        if self.block_bytes == 0 || self.cell_blocks == 0 {
            return Err("block_bytes and cell_blocks are at least 1".into());
        }
        if self.context < 2 {
            return Err("a context below 2 has nothing to predict".into());
        }
        if !part(self.bad_part) || !part(self.pictures.mirror) {
            return Err("bad_part and mirror are parts, from 0 to 1".into());
        }
        if !part(self.pictures.crop) || self.pictures.crop <= 0.0 {
            return Err("crop is a part of a picture, above 0 and up to 1".into());
        }
        if !(1..=512).contains(&self.pictures.patch) {
            return Err("a patch has 1 to 512 pixels along its side".into());
        }
        if !(1..=MOST_VISUAL_TOKENS).contains(&self.pictures.tokens) {
            return Err(format!(
                "a picture has 1 to {MOST_VISUAL_TOKENS} visual tokens"
            ));
        }
        match self.format.of_files() {
            None => Ok(()),
            Some(format) => format.check(),
        }
    }

    /// The most of so many records of a cell that may be bad.
    #[must_use]
    pub fn bad_allowed(&self, records: u32) -> u32 {
        let part = (f64::from(records) * self.bad_part) as u32;
        part.max(self.bad_records)
    }

    /// Returns true where its samples have pictures.
    #[must_use]
    pub fn has_pictures(&self) -> bool {
        match (self.format.of_files(), &self.format) {
            (Some(format), _) => format.has_pictures(),
            (None, format) => !matches!(format, Format::Text(_)),
        }
    }
}

impl Fields {
    /// A document's text is in this field.
    #[must_use]
    pub fn text(name: impl Into<String>) -> Self {
        Self {
            text: Some(name.into()),
            ..Self::default()
        }
    }

    /// A prompt and the response to it are in these fields.
    #[must_use]
    pub fn pair(prompt: impl Into<String>, response: impl Into<String>) -> Self {
        Self {
            prompt: Some(prompt.into()),
            response: Some(response.into()),
            ..Self::default()
        }
    }

    /// The names of the fields that are read: of the messages, the text or the prompt, of the response, of the
    /// picture.
    pub(crate) fn names(&self) -> (&str, Option<&str>, Option<&str>) {
        let first = self.messages.as_ref().or(self.prompt.as_ref());
        let first = first.or(self.text.as_ref());
        (
            first.map_or("text", String::as_str),
            self.response.as_deref(),
            self.image.as_deref(),
        )
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        if self.messages.is_some() {
            let others = [&self.text, &self.prompt, &self.response, &self.image];
            return match others.iter().any(|field| field.is_some()) {
                true => Err(
                    "`messages` stand for themselves: name no `text`, `prompt`, `response` \
                             or `image` beside them"
                        .into(),
                ),
                false => Ok(()),
            };
        }
        if self.tools.is_some() || self.learn != LearntTurns::default() {
            return Err("`tools` and `learn` are of conversations: name a field `messages`".into());
        }
        match (&self.text, &self.prompt, &self.response) {
            (Some(_), None, None) | (None, None, None) | (None, Some(_), Some(_)) => Ok(()),
            _ => Err("name a field `text`, or `prompt` and `response`, or `messages`".into()),
        }
    }
}

fn block_bytes() -> u64 {
    256 << 10
}

fn cell_blocks() -> u32 {
    8
}

fn context() -> u32 {
    1024
}

fn bad_records() -> u32 {
    8
}

fn bad_part() -> f64 {
    0.01
}

/// A picture of so many tokens has 51 million pixels with patches of 14.
const MOST_VISUAL_TOKENS: u32 = 65_536;

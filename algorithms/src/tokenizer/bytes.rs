//! One token per byte.

/// A tokenizer over bytes: the ids 0 to 255 are the bytes of UTF-8, 256 pads, 257 begins, 258 ends.
/// It encodes any text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteTokenizer;

impl ByteTokenizer {
    /// The id that pads.
    pub const PAD: u32 = 256;
    /// The id that begins a sequence.
    pub const BOS: u32 = 257;
    /// The id that ends a sequence.
    pub const EOS: u32 = 258;
    /// The number of ids, the special ones included.
    pub const VOCABULARY: usize = 259;

    /// Encodes text.
    #[must_use]
    pub fn encode(self, text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    /// Decodes tokens; special ids leave no text, and what is not UTF-8 becomes replacement characters.
    #[must_use]
    pub fn decode(self, tokens: &[u32]) -> String {
        let bytes: Vec<u8> = tokens
            .iter()
            .filter_map(|&token| token.try_into().ok())
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

//! Several pictures and videos in one sequence: where each begins, and where each patch and each token is.

use crate::error::MediaError;

/// The patches of a picture or a video.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PatchGrid {
    /// Patches along time: 1 for a picture.
    pub frames: u32,
    /// Patches from top to bottom.
    pub rows: u32,
    /// Patches from left to right.
    pub columns: u32,
}

impl PatchGrid {
    /// Its patches.
    #[must_use]
    pub fn patches(&self) -> u64 {
        u64::from(self.frames) * u64::from(self.rows) * u64::from(self.columns)
    }

    /// Its tokens, of `merge` x `merge` patches each.
    #[must_use]
    pub fn tokens(&self, merge: u32) -> u64 {
        self.patches() / u64::from(merge.max(1)).pow(2)
    }

    fn check(&self, merge: u32) -> Result<(), MediaError> {
        let whole = |side: u32| merge > 0 && side > 0 && side.is_multiple_of(merge);
        if whole(self.rows) && whole(self.columns) && self.frames > 0 {
            return Ok(());
        }
        Err(MediaError::Argument {
            what: "rows or columns of patches",
            is: self.rows.min(self.columns).into(),
            must: "a multiple of the patches along a token",
        })
    }
}

/// Patches of several pictures in one sequence, in the order of [`PictureProcessor`].
///
/// [`PictureProcessor`]: crate::PictureProcessor
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatchPacking {
    /// Where each picture or frame begins, and the end of the last: attention stays within two of them.
    pub cu_seqlens: Vec<u32>,
    /// Row and column of each patch within its picture, for 2-D rotary positions.
    pub positions: Vec<[u32; 2]>,
}

impl PatchPacking {
    /// Packs pictures of these patches, `merge` along a token. Each frame of a video is a sequence of its own.
    ///
    /// # Errors
    /// Where rows or columns are no multiple of `merge`.
    pub fn new(grids: &[PatchGrid], merge: u32) -> Result<Self, MediaError> {
        let mut packing = Self {
            cu_seqlens: vec![0],
            positions: vec![],
        };
        let mut end = 0;
        for grid in grids {
            grid.check(merge)?;
            for _ in 0..grid.frames {
                for token in 0..(grid.rows / merge) * (grid.columns / merge) {
                    let across = grid.columns / merge;
                    let (top, left) = (token / across * merge, token % across * merge);
                    let places = 0..merge * merge;
                    let of = |place: u32| [top + place / merge, left + place % merge];
                    packing.positions.extend(places.map(of));
                }
                end += grid.rows * grid.columns;
                packing.cu_seqlens.push(end);
            }
        }
        Ok(packing)
    }

    /// The angles by which a head of `head_dim` numbers is turned at each patch: `head_dim / 2` for each, the first half by its
    /// row, the second by its column, at frequencies `theta^(-4 i / head_dim)`, as in Qwen's vision towers. The numbers `i` and
    /// `i + head_dim / 2` of a head are turned together.
    #[must_use]
    pub fn rotary_angles(&self, head_dim: usize, theta: f64) -> Vec<f32> {
        let each = head_dim / 4;
        let frequency = |i: usize| theta.powf(-(i as f64) * 4.0 / head_dim as f64) as f32;
        let frequencies: Vec<f32> = (0..each).map(frequency).collect();
        let mut angles = Vec::with_capacity(self.positions.len() * each * 2);
        for place in &self.positions {
            for &side in place {
                angles.extend(frequencies.iter().map(|frequency| side as f32 * frequency));
            }
        }
        angles
    }
}

/// Windows of tokens within which the windowed layers of Qwen2.5-VL's vision tower attend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttentionWindows {
    /// The tokens in the order of their windows: numbers of tokens in the sequence.
    pub order: Vec<u32>,
    /// Where each window begins, in patches in that order, and the end of the last.
    pub cu_seqlens: Vec<u32>,
}

impl AttentionWindows {
    /// Windows of `side` x `side` tokens; those at the right and at the bottom may be smaller.
    ///
    /// # Errors
    /// Where rows or columns are no multiple of `merge`, or `side` is 0.
    pub fn new(grids: &[PatchGrid], merge: u32, side: u32) -> Result<Self, MediaError> {
        if side == 0 {
            return Err(MediaError::Argument {
                what: "tokens along a window",
                is: 0,
                must: "one at least",
            });
        }
        let (mut order, mut cu_seqlens, mut first) = (vec![], vec![0], 0);
        for grid in grids {
            grid.check(merge)?;
            let (rows, columns) = (grid.rows / merge, grid.columns / merge);
            for _ in 0..grid.frames {
                for top in (0..rows).step_by(side as usize) {
                    for left in (0..columns).step_by(side as usize) {
                        for row in top..rows.min(top + side) {
                            let across = left..columns.min(left + side);
                            order.extend(across.map(|column| first + row * columns + column));
                        }
                        cu_seqlens.push(order.len() as u32 * merge * merge);
                    }
                }
                first += rows * columns;
            }
        }
        Ok(Self { order, cu_seqlens })
    }
}

/// A stretch of a sequence that a language model reads.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum SequencePart {
    /// So many tokens of text.
    Text(u32),
    /// The tokens of a picture.
    Picture(PatchGrid),
    /// The tokens of a video with the seconds from one patch in time to the next, as Qwen2.5-VL reads it. Qwen3-VL reads a
    /// video as text with its time and a [`Self::Picture`], again and again.
    Video {
        /// Its patches.
        grid: PatchGrid,
        /// Seconds from one patch to the next.
        seconds: f32,
    },
}

/// Positions of the tokens of a sequence in time, rows and columns (M-RoPE, arXiv 2409.12191).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MropePositions {
    /// Time, row and column of each token.
    pub positions: Vec<[i64; 3]>,
    /// The position of the token behind the last, less the number of tokens: what is generated goes on from there.
    pub delta: i64,
}

impl MropePositions {
    /// Positions of a sequence of these parts: text has one after the other in all three; a picture begins behind what is
    /// before it, and what is behind it as far on as its longer side has tokens. `per_second` is what a second of video is
    /// in positions: `tokens_per_second` of Qwen2.5-VL's configuration.
    ///
    /// # Errors
    /// Where rows or columns are no multiple of `merge`.
    pub fn new(parts: &[SequencePart], merge: u32, per_second: f32) -> Result<Self, MediaError> {
        let (mut positions, mut next) = (vec![], 0_i64);
        for part in parts {
            let (grid, interval) = match part {
                SequencePart::Text(tokens) => {
                    let tokens = i64::from(*tokens);
                    positions.extend((next..next + tokens).map(|at| [at; 3]));
                    next += tokens;
                    continue;
                }
                SequencePart::Picture(grid) => (grid, 1.0),
                SequencePart::Video { grid, seconds } => (grid, per_second * seconds),
            };
            grid.check(merge)?;
            let (rows, columns) = (grid.rows / merge, grid.columns / merge);
            for frame in 0..grid.frames {
                let time = (frame as f32 * interval) as i64;
                for row in 0..rows {
                    let at = |column| [time, row.into(), i64::from(column)].map(|side| side + next);
                    positions.extend((0..columns).map(at));
                }
            }
            next += i64::from(rows.max(columns));
        }
        let last = positions.iter().flatten().max().copied().unwrap_or(-1);
        let delta = last + 1 - positions.len() as i64;
        Ok(Self { positions, delta })
    }
}

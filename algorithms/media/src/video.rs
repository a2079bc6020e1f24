//! Videos: which frames are looked at, how closely, and how their times are told. Arithmetic alone; the frames of a GIF or
//! a WebP come from [`frames`](crate::frames).

use crate::error::MediaError;

/// The tokens that frames of a video may have, together and each (dynamic frame-resolution sampling, Seed1.5-VL, arXiv
/// 2505.07062).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VideoBudget {
    /// Tokens of all frames together. Those of the texts with their times are not counted.
    pub tokens_max: u32,
    /// Tokens of a frame, the most first: the first that all frames fit with is taken.
    pub levels: Vec<u32>,
}

impl Default for VideoBudget {
    fn default() -> Self {
        Self {
            tokens_max: 81_920,
            levels: vec![640, 512, 384, 256, 160, 128],
        }
    }
}

/// The frames of a video that are looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct VideoSampling {
    /// The time of each, in seconds from the beginning.
    pub seconds: Vec<f64>,
    /// The most tokens of each.
    pub level: u32,
}

impl VideoSampling {
    /// Tokens of all frames, each with as many as it may have.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.seconds.len() as u64 * u64::from(self.level)
    }
}

impl VideoBudget {
    /// Frames of a video of so many seconds at a rate of `fps` a second: all of them at the highest level at which they fit; at
    /// the lowest where none is low enough, and then so many fewer, evenly over the video.
    ///
    /// # Errors
    /// Where the duration or the rate is no positive number, the frames are more than 16 million, or there is no level that
    /// is at least 1 and within the budget.
    pub fn sample(&self, duration_seconds: f64, fps: f64) -> Result<VideoSampling, MediaError> {
        for (what, number) in [
            ("the seconds of a video", duration_seconds),
            ("its frames a second", fps),
        ] {
            if !(number.is_finite() && number > 0.0) {
                return Err(MediaError::Argument {
                    what,
                    is: number as u64,
                    must: "a number above 0",
                });
            }
        }
        let lowest = self.levels.iter().copied().min().unwrap_or(0);
        if lowest == 0 || lowest > self.tokens_max {
            return Err(MediaError::Argument {
                what: "the lowest level of a video's frames",
                is: lowest.into(),
                must: "one token at least, and within the budget",
            });
        }
        let count = (duration_seconds * fps).ceil().max(1.0);
        if count > FRAMES_MAX {
            return Err(MediaError::Argument {
                what: "the number of a video's frames",
                is: count as u64,
                must: "16,777,216 at most",
            });
        }
        let count = count as u64;
        let fits = |level: &&u32| count * u64::from(**level) <= u64::from(self.tokens_max);
        let level = self.levels.iter().find(fits).copied();
        let kept = match level {
            Some(_) => count,
            None => u64::from(self.tokens_max / lowest),
        };
        let seconds = evenly(count, kept).map(|frame| frame as f64 / fps);
        Ok(VideoSampling {
            seconds: seconds.collect(),
            level: level.unwrap_or(lowest),
        })
    }
}

/// `kept` of `count` frames, from the first to the last, at even distances: the nearest, halves to the even one.
pub fn evenly(count: u64, kept: u64) -> impl Iterator<Item = u64> {
    let kept = kept.min(count);
    let step = match kept {
        0 | 1 => 0.0,
        _ => (count - 1) as f64 / (kept - 1) as f64,
    };
    (0..kept).map(move |at| {
        // The last one exactly, whatever the rounding.
        if kept > 1 && at == kept - 1 {
            count - 1
        } else {
            (at as f64 * step).round_ties_even() as u64
        }
    })
}

/// The number of a video's frames that Qwen3-VL's processor looks at: those of `fps` a second, `frames_min` to `frames_max`, and no
/// more than there are. [`evenly`] tells which.
#[must_use]
pub fn qwen_frames(count: u64, video_fps: f64, fps: f64, frames_min: u64, frames_max: u64) -> u64 {
    let wanted = (count as f64 / video_fps * fps) as u64;
    wanted.max(frames_min).min(frames_max).min(count)
}

/// The frame that is seen at each time, of frames that are each seen up to a time in milliseconds: the last one behind the
/// end.
#[must_use]
pub fn seen_at(to_ms: &[u64], seconds: &[f64]) -> Vec<usize> {
    let last = to_ms.len().saturating_sub(1);
    let at = |seconds: &f64| {
        let ms = seconds * 1000.0;
        to_ms.partition_point(|end| *end as f64 <= ms).min(last)
    };
    seconds.iter().map(at).collect()
}

/// The text in front of a frame as Seed1.5-VL reads it: `[1.5 second]`.
#[must_use]
pub fn seed_stamp(seconds: f64) -> String {
    format!("[{seconds:.1} second]")
}

/// The text in front of a patch of frames as Qwen3-VL reads it: `<1.5 seconds>`.
#[must_use]
pub fn qwen_stamp(seconds: f64) -> String {
    format!("<{seconds:.1} seconds>")
}

/// The times of patches of `temporal` frames each: halfway between their first frame and their last, the last frame of all
/// repeated. In seconds, of frames by their number.
///
/// # Panics
/// Where `temporal` is 0.
#[must_use]
pub fn patch_seconds(frames: &[u64], video_fps: f64, temporal: usize) -> Vec<f64> {
    let time = |frame: &u64| *frame as f64 / video_fps;
    let of = |together: &[u64]| {
        let last = if together.len() < temporal {
            frames.last()
        } else {
            together.last()
        };
        let (first, last) = (together.first().map_or(0.0, time), last.map_or(0.0, time));
        (first + last) / 2.0
    };
    frames.chunks(temporal).map(of).collect()
}

const FRAMES_MAX: f64 = 16_777_216.0;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn levels_and_the_fall_back_are_those_of_the_paper() {
        let check = |seconds: f64, fps, frames, level| {
            let sampling = VideoBudget::default().sample(seconds, fps).unwrap();
            let seen = (sampling.seconds.len(), sampling.level);
            assert_eq!(seen, (frames, level), "{seconds} s at {fps}");
        };
        check(1.0, 1.0, 1, 640);
        check(0.01, 1.0, 1, 640);
        check(128.0, 1.0, 128, 640);
        check(129.0, 1.0, 129, 512);
        check(160.0, 1.0, 160, 512);
        check(161.0, 1.0, 161, 384);
        check(213.0, 1.0, 213, 384);
        check(214.0, 1.0, 214, 256);
        check(320.0, 1.0, 320, 256);
        check(321.0, 1.0, 321, 160);
        check(512.0, 1.0, 512, 160);
        check(513.0, 1.0, 513, 128);
        check(640.0, 1.0, 640, 128);
        // 81,920 / 128 frames of a longer one.
        check(641.0, 1.0, 640, 128);
        check(36_000.0, 5.0, 640, 128);
        check(64.0, 2.0, 128, 640);
    }

    proptest! {
        // SEMANTICS 224.
        #[test]
        fn frames_are_within_their_budget_and_their_video(
            seconds in prop_oneof![0.001_f64..10.0, 0.1_f64..100_000.0],
            fps in prop_oneof![Just(1.0), Just(2.0), Just(5.0), 0.01_f64..60.0],
            tokens_max in 1_u32..200_000,
            mut levels in prop::collection::vec(1_u32..2000, 1..8),
        ) {
            levels.sort_unstable_by(|a, b| b.cmp(a));
            let budget = VideoBudget { tokens_max, levels: levels.clone() };
            let lowest = levels[levels.len() - 1];
            match budget.sample(seconds, fps) {
                Err(_) => prop_assert!(lowest > tokens_max),
                Ok(sampling) => {
                    prop_assert!(sampling.tokens() <= u64::from(tokens_max));
                    prop_assert!(!sampling.seconds.is_empty());
                    prop_assert!(sampling.seconds.is_sorted_by(|a, b| a < b));
                    prop_assert!(sampling.seconds[0] == 0.0);
                    prop_assert!(sampling.seconds[sampling.seconds.len() - 1] < seconds);
                    // No higher level would have done.
                    let all = (seconds * fps).ceil() as u64;
                    for level in levels.iter().take_while(|level| **level > sampling.level) {
                        prop_assert!(all * u64::from(*level) > u64::from(tokens_max));
                    }
                }
            }
        }

        // SEMANTICS 224.
        #[test]
        fn even_frames_begin_with_the_first_and_end_with_the_last(
            count in 1_u64..100_000, kept in 0_u64..2000,
        ) {
            let frames: Vec<u64> = evenly(count, kept).collect();
            prop_assert_eq!(frames.len() as u64, kept.min(count));
            prop_assert!(frames.is_sorted_by(|a, b| a < b));
            if kept > 1 && count > 1 {
                prop_assert_eq!((frames[0], frames[frames.len() - 1]), (0, count - 1));
            }
        }
    }

    #[test]
    fn frames_are_found_by_their_times() {
        let ends = [100, 250, 400];
        let at = [0.0, 0.0999, 0.1, 0.25, 0.399, 0.4, 9.0];
        assert_eq!(seen_at(&ends, &at), [0, 0, 1, 2, 2, 2, 2]);
    }

    #[test]
    fn times_are_told_as_text() {
        assert_eq!(seed_stamp(1.5), "[1.5 second]");
        assert_eq!(seed_stamp(0.0), "[0.0 second]");
        assert_eq!(qwen_stamp(61.25), "<61.2 seconds>");
        assert_eq!(patch_seconds(&[0, 12, 24], 24.0, 2), [0.25, 1.0]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_words() {
        let budget = VideoBudget::default();
        let said = |seconds, fps| budget.sample(seconds, fps).unwrap_err().to_string();
        assert_eq!(
            said(0.0, 1.0),
            "the seconds of a video is 0, and must be a number above 0"
        );
        assert!(said(1.0, f64::NAN).contains("its frames a second"));
        assert!(said(1e9, 60.0).contains("16,777,216 at most"));
    }
}

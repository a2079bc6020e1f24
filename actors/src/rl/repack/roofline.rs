//! Number of requests that a device decodes before it waits for arithmetic, and no longer for
//! memory.

/// A device and a model, for [`roofline_batch`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofline {
    /// Operations of the device in a second, in the format of the weights; an addition and a
    /// multiplication are two. Of all devices of the replica together, as the next three.
    pub flops_per_s: f64,
    /// Bytes that the device reads from its memory in a second.
    pub bytes_per_s: f64,
    /// Bytes of the weights that a step reads.
    pub weight_bytes: f64,
    /// Bytes of one weight: 2 of bf16.
    pub bytes_per_weight: f64,
    /// Bytes of the KV cache for one token of one request.
    pub kv_bytes_per_token: f64,
    /// Tokens that a request holds in the cache, in the mean. 0 looks at the linear layers alone,
    /// which is the stricter reading, see [`roofline_batch`].
    pub mean_context: f64,
}

/// A number of a [`Roofline`] is none that a device or a model can have. Nothing was worked out.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{what} is {value}: it must be finite and above zero")]
pub struct RooflineError {
    /// Which field.
    pub what: &'static str,
    /// Its value.
    pub value: f64,
}

/// The largest decode batch that is still bound by memory: the paper's B. At least 1, and
/// `u32::MAX` when every batch is.
///
/// A step of `b` requests reads the weights once and the cache of each request, and multiplies each
/// weight once for each request:
///
/// ```text
/// memory(b)     = (P + b c k) / W          P weight_bytes, w bytes_per_weight, F flops_per_s,
/// arithmetic(b) = b 2 (P / w) / F          W bytes_per_s, k kv_bytes_per_token, c mean_context
///
/// arithmetic(b) <= memory(b)   <=>   b (2 W / (w F) - c k / P) <= 1
/// B = floor(1 / (2 W / (w F) - c k / P))
/// ```
///
/// This is the roofline model (Williams, Waterman, Patterson 2009) with an intensity of `2 / w`
/// operations for a byte of weights and request. At `c = 0` it is the ridge `w F / (2 W)`. Each
/// request brings its own bytes, so from `c k / P >= 2 W / (w F)` on no batch is large enough.
///
/// The arithmetic of attention is left out: `2 g / w` operations for a byte of cache, with `g`
/// heads that share one, are far below the ridge. The linear layers and attention take turns, and
/// the former leave the regime of memory at the ridge whatever attention does. Who wants a step of
/// the linear layers to cost no more after a repack than before gives `mean_context: 0`.
///
/// # Errors
/// When a number is not finite, or not above zero. The two of the cache may be zero.
pub fn roofline_batch(roofline: &Roofline) -> Result<u32, RooflineError> {
    let Roofline {
        flops_per_s,
        bytes_per_s,
        weight_bytes,
        bytes_per_weight,
        kv_bytes_per_token,
        mean_context,
    } = *roofline;
    for (what, value, least) in [
        ("flops_per_s", flops_per_s, f64::MIN_POSITIVE),
        ("bytes_per_s", bytes_per_s, f64::MIN_POSITIVE),
        ("weight_bytes", weight_bytes, f64::MIN_POSITIVE),
        ("bytes_per_weight", bytes_per_weight, f64::MIN_POSITIVE),
        ("kv_bytes_per_token", kv_bytes_per_token, 0.0),
        ("mean_context", mean_context, 0.0),
    ] {
        if !value.is_finite() || value < least {
            return Err(RooflineError { what, value });
        }
    }
    let share_of_one = 2.0 * bytes_per_s / (bytes_per_weight * flops_per_s)
        - mean_context * kv_bytes_per_token / weight_bytes;
    if share_of_one <= 0.0 {
        return Ok(u32::MAX);
    }
    // A float becomes the nearest integer of the type.
    Ok(((1.0 / share_of_one).floor() as u32).max(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 7.6e9 weights in bf16 on a card with 989e12 operations and 3.35e12 bytes in a second.
    const CARD: Roofline = Roofline {
        flops_per_s: 989e12,
        bytes_per_s: 3.35e12,
        weight_bytes: 15.2e9,
        bytes_per_weight: 2.0,
        kv_bytes_per_token: 57_344.0,
        mean_context: 0.0,
    };

    #[test]
    fn without_context_it_is_the_ridge() {
        assert_eq!(roofline_batch(&CARD), Ok(295));
        let eight_bits = Roofline {
            flops_per_s: 2.0 * CARD.flops_per_s,
            bytes_per_weight: 1.0,
            ..CARD
        };
        assert_eq!(roofline_batch(&eight_bits), Ok(295));
    }

    #[test]
    fn long_contexts_keep_every_batch_bound_by_memory() {
        let at = |mean_context| {
            roofline_batch(&Roofline {
                mean_context,
                ..CARD
            })
        };
        assert_eq!(at(400.0), Ok(532));
        assert_eq!(at(8_192.0), Ok(u32::MAX));
    }

    #[test]
    fn numbers_that_cannot_be_are_refused_by_name() {
        for (broken, what) in [
            (
                Roofline {
                    flops_per_s: 0.0,
                    ..CARD
                },
                "flops_per_s",
            ),
            (
                Roofline {
                    bytes_per_s: f64::NAN,
                    ..CARD
                },
                "bytes_per_s",
            ),
            (
                Roofline {
                    mean_context: -1.0,
                    ..CARD
                },
                "mean_context",
            ),
            (
                Roofline {
                    weight_bytes: f64::INFINITY,
                    ..CARD
                },
                "weight_bytes",
            ),
        ] {
            assert_eq!(roofline_batch(&broken).unwrap_err().what, what);
        }
    }

    proptest! {
        /// By the two times themselves.
        #[test]
        fn the_batch_is_bound_by_memory_and_one_more_is_not(
            flops_per_s in 1e12..2e15,
            bytes_per_s in 1e10..1e13,
            weight_bytes in 1e8..1e12,
            bytes_per_weight in 0.5..4.0,
            kv_bytes_per_token in 0.0..1e6,
            mean_context in 0.0..1e4,
        ) {
            let roofline = Roofline {
                flops_per_s, bytes_per_s, weight_bytes, bytes_per_weight, kv_bytes_per_token,
                mean_context,
            };
            let batch = roofline_batch(&roofline).unwrap();
            let slack = |batch: f64| {
                let cache = batch * mean_context * kv_bytes_per_token;
                let memory = (weight_bytes + cache) / bytes_per_s;
                let arithmetic = batch * 2.0 * (weight_bytes / bytes_per_weight) / flops_per_s;
                (memory - arithmetic) / memory
            };
            // Even one request may be more than the device can do in the time.
            prop_assert!(batch == 1 || slack(f64::from(batch)) >= -1e-9);
            prop_assert!(batch == u32::MAX || slack(f64::from(batch) + 1.0) <= 1e-9);
        }
    }
}

//! Loops compiled for several instruction sets, of which the best that the processor has is taken at
//! run time: [`simd!`]. And random numbers by their place, which such loops draw: [`philox()`].
//!
//! A crate of its own, so that reductions of collectives are as quick as the operations of
//! `odeon-gpu` and stand on none of them.

mod philox;

pub use philox::{philox, philox_lanes};

/// Instruction sets that loops are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// AVX-512 F, VL, DQ, BW.
    #[cfg(target_arch = "x86_64")]
    V4,
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    V3,
    /// Whatever the target guarantees.
    Baseline,
}

/// The best instruction set of this processor.
#[inline]
#[must_use]
pub fn isa() -> Isa {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512bw")
        {
            return Isa::V4;
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Isa::V3;
        }
    }
    Isa::Baseline
}

/// Defines a function whose body is compiled once per instruction set and dispatched at run time.
/// The body may name the constant `FMA`: whether the multiply-add is one instruction. One type
/// parameter with one bound may stand before the arguments.
///
/// ```
/// odeon_simd::simd! {
///     /// `sums += from`.
///     fn add(sums: &mut [f32], from: &[f32]) {
///         for (sum, value) in sums.iter_mut().zip(from) {
///             *sum += value;
///         }
///     }
///
///     /// `all += more`.
///     fn raise<T: Into<f32>>(all: &mut [f32], more: T) {
///         let more = more.into();
///         all.iter_mut().for_each(|one| *one += more);
///     }
/// }
///
/// let mut sums = [1.0, 2.0];
/// add(&mut sums, &[0.5, 0.5]);
/// raise(&mut sums, 1u8);
/// assert_eq!(sums, [2.5, 3.5]);
/// ```
#[macro_export]
macro_rules! simd {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident $(<$type:ident: $bound:path>)?
        ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {$(
        $(#[$meta])*
        $vis fn $name $(<$type: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments, reason = "as many as the function has")]
            #[allow(clippy::extra_unused_type_parameters, reason = "some bodies need no FMA")]
            fn body<const FMA: bool $(, $type: $bound)?>($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
                #[allow(clippy::too_many_arguments, reason = "as many as the function has")]
                fn v4 $(<$type: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
                    body::<true $(, $type)?>($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                #[allow(clippy::too_many_arguments, reason = "as many as the function has")]
                fn v3 $(<$type: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
                    body::<true $(, $type)?>($($arg),*)
                }
                match $crate::isa() {
                    // SAFETY: `isa` found every feature that the copy is compiled for.
                    $crate::Isa::V4 => return unsafe { v4 $(::<$type>)? ($($arg),*) },
                    // SAFETY: as above.
                    $crate::Isa::V3 => return unsafe { v3 $(::<$type>)? ($($arg),*) },
                    $crate::Isa::Baseline => {}
                }
            }
            body::<false $(, $type)?>($($arg),*)
        }
    )*};
}

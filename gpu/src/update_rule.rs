//! Update rules of optimisers that treat each element by itself: arithmetic that is written once, for
//! every device.
//!
//! [`update_rule!`](macro@crate::update_rule) takes a few assignments that are Rust and CUDA C++ alike, and
//! makes of them a loop for the processor and the text of a kernel, which the CUDA back-end compiles
//! when it is first needed. Such text consists of `let` and assignments of products, sums, quotients and
//! the functions [`root`] and [`sign`]; it has no numbers in it, whose types would differ: a rule's
//! numbers have names.

use std::fmt::Debug;

/// The text of a rule, of which a back-end makes a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RuleText {
    /// Name of the rule, which is part of the kernel's.
    pub name: &'static str,
    /// Name of the parameter in the text.
    pub parameter: &'static str,
    /// Name of its gradient.
    pub gradient: &'static str,
    /// Names of the numbers that are kept from step to step for each parameter.
    pub states: &'static [&'static str],
    /// Names of the numbers that are the same for all parameters.
    pub numbers: &'static [&'static str],
    /// Assignments to the parameter and to what is kept.
    pub body: &'static str,
}

/// A rule with its numbers for one step; [`update_rule!`](macro@crate::update_rule) implements it.
pub trait UpdateRule: Copy + Debug + Send + Sync + 'static {
    /// Its text.
    const TEXT: RuleText;

    /// Its numbers, in the order of [`RuleText::numbers`].
    fn numbers(&self) -> Vec<f32>;

    /// Changes parameters and what is kept for them, element by element: `states` in the order of
    /// [`RuleText::states`], all slices at least as long as `params`.
    ///
    /// # Panics
    /// If there are not as many buffers as the rule keeps, or one is shorter.
    fn apply(self, params: &mut [f32], grads: &[f32], states: &mut [&mut [f32]]);
}

/// Elements of which the first parameter of a part that has states of its own is a multiple: a card reads
/// vectors.
pub const STATES_ALIGN: usize = 16;

/// Square root.
#[inline(always)]
#[must_use]
pub fn root(x: f32) -> f32 {
    x.sqrt()
}

/// 1, 0 or -1; 0 for what is no number.
#[inline(always)]
#[must_use]
pub fn sign(x: f32) -> f32 {
    f32::from(u8::from(x > 0.0)) - f32::from(u8::from(x < 0.0))
}

/// Makes a struct of numbers an [`UpdateRule`](crate::UpdateRule).
///
/// The struct's fields are numbers by which the text names them. The function's name is the rule's; its
/// arguments name the parameter, the gradient, and what is kept for each parameter.
///
/// ```
/// use odeon_gpu::{Backend, Cpu};
///
/// odeon_gpu::update_rule! {
///     /// Gradient descent with momentum.
///     struct Descent {
///         lr: f32,
///         decay: f32,
///     }
///     fn descent(p, g, [m]) {
///         m = decay * m + g;
///         p = p - lr * m;
///     }
/// }
///
/// let cpu = Cpu::new(1);
/// let (mut params, grads) = (cpu.buffer(&[1.0, 2.0]), cpu.buffer(&[0.5, -1.0]));
/// let mut momentum = cpu.alloc(2);
/// let step = Descent { lr: 0.1, decay: 0.5 };
/// // Of all parameters the second alone.
/// cpu.update(&[(1..2, step)], &mut params, &grads, 0, &mut [&mut momentum]);
/// assert_eq!(cpu.to_vec(&params), [1.0, 2.1]);
/// assert_eq!(cpu.to_vec(&momentum), [0.0, -1.0]);
/// ```
#[macro_export]
macro_rules! update_rule {
    (
        $(#[$meta:meta])*
        $vis:vis struct $rule:ident {
            $($(#[$field:meta])* $number:ident: f32,)*
        }
        fn $name:ident($parameter:ident, $gradient:ident, [$($state:ident),*]) {
            $($body:tt)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        $vis struct $rule {
            $($(#[$field])* $vis $number: f32,)*
        }

        impl $crate::UpdateRule for $rule {
            const TEXT: $crate::RuleText = $crate::RuleText {
                name: stringify!($name),
                parameter: stringify!($parameter),
                gradient: stringify!($gradient),
                states: &[$(stringify!($state)),*],
                numbers: &[$(stringify!($number)),*],
                body: stringify!($($body)*),
            };

            fn numbers(&self) -> Vec<f32> {
                vec![$(self.$number),*]
            }

            #[inline(always)]
            #[allow(clippy::needless_range_loop, reason = "one index goes through all slices")]
            #[allow(clippy::reversed_empty_ranges, reason = "a rule may keep nothing")]
            #[allow(clippy::assign_op_pattern, reason = "as the text is in C++")]
            fn apply(self, params: &mut [f32], grads: &[f32], states: &mut [&mut [f32]]) {
                #[allow(unused_imports, reason = "functions that the text may name")]
                use $crate::update_rule::{root, sign};
                const STATES: usize = <$rule as $crate::UpdateRule>::TEXT.states.len();
                let Self { $($number),* } = self;
                let len = params.len();
                let grads = &grads[..len];
                let states: &mut [&mut [f32]; STATES] =
                    states.try_into().expect("as many buffers as the rule keeps");
                // Each cut to one length here, so that the loop needs no checks.
                let states = states.each_mut().map(|state| &mut state[..len]);
                for i in 0..len {
                    let mut held = [0.0f32; STATES];
                    for k in 0..STATES {
                        held[k] = states[k][i];
                    }
                    let (mut $parameter, $gradient) = (params[i], grads[i]);
                    let [$(mut $state),*] = held;
                    $($body)*
                    params[i] = $parameter;
                    let held = [$($state),*];
                    for k in 0..STATES {
                        states[k][i] = held[k];
                    }
                }
            }
        }
    };
}

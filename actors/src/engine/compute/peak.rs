//! Peak rate of a device in the arithmetic that training is made of.

use odeon::Clock;
use odeon_gpu::{Any, Backend, MatMul};

/// Rows and columns of the matrices of a trial on a processor, and on a card: large enough that
/// larger ones are hardly quicker by the operation, and a trial takes milliseconds.
const PROCESSOR_SIDE: usize = 512;
const CARD_SIDE: usize = 2048;
/// One of so many is not held up by something else.
const TRIALS: usize = 5;

/// Floating point operations per second of the quickest of some products of square matrices.
pub(super) fn reachable_flops(backend: &Any) -> f64 {
    let side = match backend {
        Any::Cpu(_) => PROCESSOR_SIDE,
        Any::Cuda(_) => CARD_SIDE,
    };
    let len = side * side;
    let [a, b, mut c] = [(); 3].map(|()| backend.alloc(len));
    let call = MatMul::linear(side, side, side);
    let mut last = [0.0];
    let mut trial = || {
        let begun = Clock::now();
        backend.scope(|| {
            let (a, b) = (Any::view(&a, 0..len), Any::view(&b, 0..len));
            backend.matmul(call, a, b, Any::view_mut(&mut c, 0..len));
        });
        // A card is done when something of the result is here.
        backend.read(Any::view(&c, len - 1..len), &mut last);
        Clock::now().since(begun).as_secs_f64()
    };
    let quickest = (0..TRIALS).map(|_| trial()).fold(f64::MAX, f64::min);
    2.0 * (len * side) as f64 / quickest
}

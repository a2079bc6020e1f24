//! The CUDA back-end over the emulated card passes the conformance suite: the kernels' own sources,
//! in both orders of threads, with and without rounding. Skipped by name where there is no C++
//! compiler.

use odeon_gpu::Precision;
use odeon_gpu::cuda::emulated::{EmulatedError, ThreadOrder};
use odeon_gpu::cuda::{Cuda, Emulated};
use odeon_skip::{Need, skip};

/// The back-end, or nothing where there is no compiler.
fn emulated(order: ThreadOrder, precision: Precision) -> Option<Cuda<Emulated>> {
    match Emulated::start(order) {
        Ok(card) => Some(Cuda::over(card, precision)),
        Err(error @ EmulatedError::NoCompiler { .. }) => {
            skip(Need::CppCompiler, error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

macro_rules! suite {
    ($name:ident, $order:expr, $precision:expr) => {
        suite!($name, $order, $precision; matmul elementwise halves reductions rms_norm head_norm rope attention
            block_attention swiglu dropout gather combine mixture route experts vocab softmax update
            packed_linear decode tape transformer offload);
    };
    ($name:ident, $order:expr, $precision:expr; $($check:ident)*) => {
        mod $name {
            $(#[test]
            fn $check() {
                if let Some(backend) = super::emulated($order, $precision) {
                    odeon_gpu::conformance::$check(&backend);
                }
            })*
        }
    };
}

suite!(
    f32_forwards,
    super::ThreadOrder::Forwards,
    super::Precision::F32
);
suite!(
    f32_backwards,
    super::ThreadOrder::Backwards,
    super::Precision::F32
);
suite!(
    bf16_forwards,
    super::ThreadOrder::Forwards,
    super::Precision::Bf16
);
suite!(
    bf16_backwards,
    super::ThreadOrder::Backwards,
    super::Precision::Bf16
);

mod around {
    //! Tests of all that the suite does not reach: faults, leaks, graphs, pages, rounded
    //! parameters.

    use odeon_devices::fault::{FaultKind, GpuFault};
    use odeon_gpu::conformance::TwoMoments;
    use odeon_gpu::cuda::emulated::ThreadOrder;
    use odeon_gpu::cuda::{Cuda, Emulated, PAGE};
    use odeon_gpu::{AttentionShape, Backend, BlockTable, CacheRow, MatMul, Precision, Store};

    fn started(precision: Precision) -> Option<Cuda<Emulated>> {
        super::emulated(ThreadOrder::Forwards, precision)
    }

    fn numbers(len: usize) -> Vec<f32> {
        (0..len)
            .map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0)
            .collect()
    }

    #[test]
    fn a_lost_card_is_a_typed_fault_and_leaves_no_memory() {
        let Some(cuda) = started(Precision::F32) else {
            return;
        };
        let held = {
            let x = cuda.buffer(&numbers(1000));
            cuda.card().break_after(0, FaultKind::Lost);
            let view = Cuda::<Emulated>::view(&x, 0..1000);
            let sum =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cuda.sum_squares(view)));
            let fault = *sum.unwrap_err().downcast::<GpuFault>().unwrap();
            assert_eq!(
                fault.to_string(),
                "device 0: the device has fallen off the bus"
            );
            assert_eq!(cuda.fault().map(|fault| fault.kind), Some(FaultKind::Lost));
            cuda.card().blocks()
        };
        assert!(held > 0);
        // The buffer is gone; staging and scratch memory live as long as the back-end.
        assert!(cuda.card().blocks() < held);
    }

    #[test]
    fn all_memory_comes_back() {
        let Some(cuda) = started(Precision::Bf16) else {
            return;
        };
        let before = cuda.card().blocks();
        {
            let x = cuda.parameters(4096);
            let mut y = cuda.alloc(64 * 64);
            let view = |range| Cuda::<Emulated>::view(&x, range);
            let dst = Cuda::<Emulated>::view_mut(&mut y, 0..64 * 64);
            cuda.matmul(
                MatMul::linear(64, 64, 32),
                view(0..2048),
                view(2048..4096),
                dst,
            );
            assert!(cuda.to_vec(&y).iter().all(|v| *v == 0.0));
            assert!(cuda.card().blocks() >= before + 3);
        }
        // Scratch and staging are the back-end's own.
        assert!(cuda.card().blocks() <= before + 2);
    }

    /// Steps of one shape become one graph, which sees the new index lists each time.
    #[test]
    fn steps_that_repeat_are_replayed_as_a_graph() {
        let Some(cuda) = started(Precision::Bf16) else {
            return;
        };
        type B = Cuda<Emulated>;
        let shape = AttentionShape {
            heads: 2,
            kv_heads: 1,
            head_dim: 16,
            window: None,
        };
        let (capacity, width, out_cols) = (130, shape.qkv_cols(), shape.out_cols());
        let blocks = BlockTable::contiguous(1, capacity, PAGE);
        let table = cuda.buffer(&numbers(200 * width));
        let weight = cuda.buffer(&numbers(out_cols * out_cols));
        let packed = cuda.pack(out_cols, out_cols, B::view(&weight, 0..out_cols * out_cols));
        let step = |cuda: &B,
                    cache: &mut <B as Backend>::Buffer,
                    memory: &mut [<B as Backend>::Buffer; 3],
                    position: u32| {
            let rows = [CacheRow { slot: 0, position }];
            let [qkv, out, y] = memory;
            cuda.gather(
                width,
                &[position],
                B::view(&table, 0..200 * width),
                B::view_mut(qkv, 0..width),
            );
            let len = B::len(cache);
            cuda.cache_append(
                shape,
                &blocks,
                &rows,
                B::view(qkv, 0..width),
                B::view_mut(cache, 0..len),
            );
            let dst = B::view_mut(out, 0..out_cols);
            cuda.cache_attention(
                shape,
                &blocks,
                &rows,
                B::view(qkv, 0..width),
                B::view(cache, 0..len),
                dst,
            );
            cuda.packed_linear(
                B::view(out, 0..out_cols),
                &packed,
                B::view_mut(y, 0..out_cols),
                Store::Set,
            );
            for _ in 0..3 {
                cuda.scale(0.5, B::view_mut(y, 0..out_cols));
            }
            cuda.to_vec(y)
        };
        let mut runs = Vec::new();
        // The second run flushes in between, so that no list is long enough for a graph.
        for piecewise in [false, true] {
            let mut cache = cuda.alloc(cuda.cache_len(shape, capacity));
            let mut memory = [
                cuda.alloc(width),
                cuda.alloc(out_cols),
                cuda.alloc(out_cols),
            ];
            cuda.flush();
            let before = cuda.counters();
            let results: Vec<Vec<f32>> = (0..20)
                .map(|position| {
                    if piecewise {
                        // A list of another length each time.
                        for _ in 0..=position {
                            cuda.fill(B::view_mut(&mut memory[2], 0..1), 1.0);
                        }
                    }
                    step(&cuda, &mut cache, &mut memory, position)
                })
                .collect();
            let after = cuda.counters();
            if piecewise {
                assert_eq!(after.replayed, before.replayed);
            } else {
                assert_eq!(after.recorded - before.recorded, 1);
                assert_eq!(after.replayed - before.replayed, 18);
            }
            runs.push(results);
        }
        assert_eq!(runs[0], runs[1], "a graph gives the same bits");
        assert!(runs[0].windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn pages_in_any_order_hold_what_contiguous_memory_holds() {
        type B = Cuda<Emulated>;
        for precision in [Precision::F32, Precision::Bf16] {
            let Some(cuda) = started(precision) else {
                return;
            };
            let shape = AttentionShape {
                heads: 2,
                kv_heads: 2,
                head_dim: 8,
                window: None,
            };
            let (width, capacity, tokens) = (shape.qkv_cols(), 3 * PAGE, PAGE + 20);
            let rows: Vec<CacheRow> = (0..tokens as u32)
                .flat_map(|position| [0, 1].map(|slot| CacheRow { slot, position }))
                .collect();
            let qkv = cuda.buffer(&numbers(rows.len() * width));
            let qkv = B::view(&qkv, 0..rows.len() * width);
            let contiguous = BlockTable::contiguous(2, capacity, PAGE);
            let mut scattered = BlockTable::new(2, 3, PAGE);
            // The slots' pages lie across each other, and one is moved before it is read.
            scattered.set(0, &[3, 0]);
            scattered.set(1, &[4, 1]);
            let page = cuda.cache_len(shape, PAGE);
            let len = rows.len() * shape.out_cols();
            let run = |table: &BlockTable, copies: &[(u32, u32)], read: &BlockTable| {
                let mut cache = cuda.alloc(6 * page);
                cuda.cache_append(
                    shape,
                    table,
                    &rows,
                    qkv,
                    B::view_mut(&mut cache, 0..6 * page),
                );
                cuda.cache_copy(page, copies, B::view_mut(&mut cache, 0..6 * page));
                let mut out = cuda.alloc(len);
                let (cache, dst) = (B::view(&cache, 0..6 * page), B::view_mut(&mut out, 0..len));
                cuda.cache_attention(shape, read, &rows, qkv, cache, dst);
                cuda.to_vec(&out)
            };
            let mut moved = scattered.clone();
            moved.set(0, &[2, 0]);
            let want = run(&contiguous, &[], &contiguous);
            assert_eq!(run(&scattered, &[], &scattered), want);
            assert_eq!(run(&scattered, &[(3, 5), (5, 2)], &moved), want);
        }
    }

    /// Every way to change parameters reaches the rounded copy that products read.
    #[test]
    fn products_see_parameters_as_they_are_now() {
        type B = Cuda<Emulated>;
        let Some(cuda) = started(Precision::Bf16) else {
            return;
        };
        let (n, len) = (16, 16 * 16 + 3);
        let mut params = cuda.parameters(len);
        let ones = cuda.buffer(&vec![1.0; n]);
        let sums = |params: &<B as Backend>::Buffer, from: usize| {
            let mut y = cuda.alloc(n);
            let w = B::view(params, from..from + n * n);
            cuda.matmul(
                MatMul::linear(1, n, n),
                B::view(&ones, 0..n),
                w,
                B::view_mut(&mut y, 0..n),
            );
            cuda.to_vec(&y)
        };
        let check = |params: &<B as Backend>::Buffer| {
            let values = cuda.to_vec(params);
            for from in [0, 3] {
                for (row, sum) in values[from..].chunks_exact(n).zip(sums(params, from)) {
                    let want: f32 = row.iter().sum();
                    assert!(
                        (want - sum).abs() <= 16.0 / 256.0 * 2.0,
                        "{sum} instead of {want}"
                    );
                }
            }
        };
        check(&params);
        cuda.write(B::view_mut(&mut params, 0..len), &vec![1.0; len]);
        check(&params);
        cuda.scale(-2.0, B::view_mut(&mut params, 5..100));
        check(&params);
        let grads = cuda.buffer(&vec![1.0; len]);
        let (mut m1, mut m2) = (cuda.alloc(len), cuda.alloc(len));
        // The first step of AdamW: the moments' bias corrected, it is the learning rate.
        let rule = TwoMoments {
            scale: 1.0,
            decay1: 0.9,
            gain1: 1.0,
            decay2: 0.99,
            gain2: 1.0,
            root2: 1.0,
            eps: 1e-8,
            rate: 0.5,
            keep: 1.0,
        };
        cuda.update(
            &[(2..201, rule)],
            &mut params,
            &grads,
            0,
            &mut [&mut m1, &mut m2],
        );
        let values = cuda.to_vec(&params);
        assert_eq!((values[1], values[200], values[201]), (1.0, 0.5, 1.0));
        check(&params);
    }

    #[test]
    fn what_does_not_fit_is_refused_before_the_card_sees_it() {
        type B = Cuda<Emulated>;
        let Some(cuda) = started(Precision::F32) else {
            return;
        };
        let table = cuda.buffer(&numbers(20));
        let mut dst = cuda.alloc(10);
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            cuda.gather(
                5,
                &[0, 4],
                B::view(&table, 0..20),
                B::view_mut(&mut dst, 0..10),
            );
        }));
        assert!(refused.is_err(), "there are four rows");
    }
}

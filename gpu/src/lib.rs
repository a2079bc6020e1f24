//! Tensors and the fused operations that train and sample models.
//!
//! The unit is the coarse operation, not the tensor: about twenty of them, each with a backward
//! pass written by hand, behind one trait, [`Backend`].
//! [`Cpu`] implements it with blocked matrix products, a thread pool of its own and vectorised
//! loops without libm calls, [`Cuda`] with kernels of its own on NVIDIA's cards, and [`Any`] is
//! whichever a user names. A [`Tape`] records the operations of one step and gives the gradient;
//! before it runs, every activation has its place in an [`Arena`], so a step of the same shape
//! allocates nothing and its memory is known in advance.
//! Parameters, gradients and optimiser moments are flat buffers; [`Layout`] names views of them.
//!
//! Below that, apart from any arithmetic, [`odeon_devices`] has what a runtime needs to hand devices
//! out, of which [`cuda::CudaDriver`] is the driver of NVIDIA's cards, and [`odeon_collective`] what
//! the ranks of a gang do together, of which [`cuda::nccl`] is the kind between cards.
//!
//! This crate knows nothing of models, losses, actors or networks.
//!
//! ```
//! use odeon_gpu::{Arena, Backend, Cpu, Param, Tape};
//!
//! let cpu = Cpu::new(1);
//! let weights = cpu.buffer(&[1.0, 2.0, 3.0, 4.0]); // two outputs of two inputs
//! let mut tape = Tape::<Cpu>::new();
//! let x = tape.input(1, 2);
//! let y = tape.linear(x, Param::new(0, 0..4), 2);
//! let plan = tape.plan_training(&[true], &[y]);
//! let mut arena = Arena::default();
//! arena.prepare(&cpu, &plan);
//! tape.write(&cpu, &mut arena, &plan, x, &[1.0, 1.0]);
//! tape.forward(&cpu, &mut arena, &plan, &[&weights]);
//! assert_eq!(tape.read(&cpu, &arena, &plan, y), [3.0, 7.0]);
//!
//! let mut gradients = [Some(cpu.alloc(4))];
//! tape.seed(&cpu, &mut arena, &plan, y, &[1.0, 0.5]);
//! tape.backward(&cpu, &mut arena, &plan, &[&weights], &mut gradients);
//! assert_eq!(cpu.to_vec(gradients[0].as_ref().unwrap()), [1.0, 1.0, 0.5, 0.5]);
//! ```
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `backend`, `layout` | the operations that every device implements; views into flat buffers |
//! | `update_rule` | steps of optimisers, element by element, each written once for every device |
//! | `tape`, `tape/*` | a step's recording: memory planned before it runs (`plan`), its pass forward and backward (`run`), rows that a router sends to experts (`route`), parameters that come when they are read (`params`), a backward pass in two (`divided`, `division`), ranks that compute together (`ranks`), rows that these exchange (`exchange`), send to each other's experts (`spread`) or around a ring (`ring`) |
//! | `cpu`, `cpu/*` | the processor back-end; `cpu/gemm/bf16` multiplies in bf16 |
//! | `cuda`, `cuda/*` | the CUDA back-end; `cuda/emulated` runs its kernels on the processor |
//! | `any`, `device` | the back-end of the device that a user named |
//! | `dispatch`, `spans`, `score_blocks` | which rows go to which experts; which rows attend to which, and to which of those that lie elsewhere |
//! | `dropout` | which numbers dropout keeps |
//! | `block_table` | where the keys and values of sequences lie in a cache |
//! | `conformance`, `conformance/*` | one suite that every back-end passes |
//! | `cuda/nccl` | collectives between cards: each call is queued, noted and watched |
//! | `cuda/nccl/library` | NCCL's functions, loaded at run time; all unsafe code of their use |
//! | `cuda/nccl/form` | what the ranks compare before NCCL begins |
//! | `cuda/nccl/watch` | the thread that sees calls end, asks the other ranks, tells faults and aborts |

pub mod any;
pub mod backend;
mod block_table;
pub mod conformance;
pub mod cpu;
pub mod cuda;
pub mod device;
mod dispatch;
mod dropout;
pub mod layout;
mod score_blocks;
mod spans;
pub mod tape;
pub mod update_rule;

pub use any::Any;
pub use backend::{
    ABSENT_ROW, Addends, AttentionShape, Backend, CacheRow, HeadNormShape, MatMul, Precision,
    RopeShape, RopeStyle, RouteShape, Store, Strides, VocabGrad, VocabStats,
};
pub use block_table::BlockTable;
pub use cpu::{Cpu, CpuBuffer, CpuError, CpuOptions};
pub use cuda::Cuda;
pub use device::{Device, DeviceError};
pub use dispatch::Dispatch;
pub use dropout::{DropoutMask, DropoutRow};
pub use layout::{Layout, TensorEntry};
pub use score_blocks::{ScoreBlock, ScoreBlocks};
pub use spans::{RowSpan, RowSpans};
pub use tape::{
    Arena, CustomOp, Division, LinearExtras, Moves, OwnExperts, Param, PassParams, PassRanks, Plan,
    Resident, Routed, SetNeeds, Tape, TapeMark, Var, VocabVars,
};
pub use update_rule::{RuleText, STATES_ALIGN, UpdateRule};

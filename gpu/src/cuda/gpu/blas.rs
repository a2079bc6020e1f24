//! Matrix products by cuBLASLt: a plan for each shape, asked for once.
//!
//! The library counts columns first. A row-major result is its transpose to it, so the operands
//! change places: what is `b` here is the library's first matrix.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::cublaslt::sys::cublasLtMatmulDescAttributes_t as DescAttribute;
use cudarc::cublaslt::sys::cublasLtMatmulPreferenceAttributes_t as Preference;
use cudarc::cublaslt::sys::cublasLtMatrixLayoutAttribute_t as LayoutAttribute;

use super::api::Stream;
use super::context::{CardMemory, Context};
use crate::cuda::card::{Addend, Arg, Format, Gemm, Launch, Operand};
use crate::cuda::error::CudaError;
use crate::cuda::kernel::Kernel;
use odeon_devices::fault::{FaultKind, GpuFault};
use odeon_devices::memory::{MemoryError, RawBlock, RawError, RawMemory, Shares};

/// Scratch memory of the library: what NVIDIA recommends for Hopper, in bytes.
const WORKSPACE: u64 = 32 << 20;
/// No more alignment than this is of use, in bytes.
const ALIGNMENT_MAX: u32 = 256;

/// Plans remembered at most, then all are made anew: experts have other numbers of rows in each step.
const PLANS_MAX: usize = 8192;

/// `CUBLAS_OP_N` and `CUBLAS_OP_T` of the library's headers.
const STRAIGHT: i32 = 0;
const TURNED: i32 = 1;

/// The library, and the plans made so far.
#[derive(Debug)]
pub(super) struct Blas {
    context: Arc<Context>,
    handle: sys::cublasLtHandle_t,
    memory: CardMemory,
    workspace: Option<RawBlock>,
    plans: HashMap<Shape, Option<Plan>>,
}

// SAFETY: the library may be called from any thread, and `self` is behind a lock.
unsafe impl Send for Blas {}

/// Everything of a product but its addresses and its factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    sizes: [u64; 4],
    a: OperandShape,
    b: OperandShape,
    ldc: u64,
    c_batch: u64,
    c_alignment: u32,
    addend_alignment: Option<u32>,
    bias: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct OperandShape {
    format: Format,
    ld: u64,
    turned: bool,
    batch: u64,
    alignment: u32,
}

fn alignment(address: u64) -> u32 {
    1 << address.trailing_zeros().min(ALIGNMENT_MAX.trailing_zeros())
}

impl OperandShape {
    fn of(operand: Operand) -> Self {
        Self {
            format: operand.format,
            ld: operand.ld,
            turned: operand.turned,
            batch: operand.batch,
            alignment: alignment(operand.address),
        }
    }
}

impl Shape {
    fn of(gemm: &Gemm, bias: bool) -> Self {
        Self {
            sizes: [gemm.batch, gemm.m, gemm.n, gemm.k],
            a: OperandShape::of(gemm.a),
            b: OperandShape::of(gemm.b),
            ldc: gemm.ldc,
            c_batch: gemm.c_batch,
            c_alignment: alignment(gemm.c),
            addend_alignment: match gemm.addend {
                Addend::Zero => None,
                Addend::Destination => Some(alignment(gemm.c)),
                Addend::Residual(address) => Some(alignment(address)),
            },
            bias,
        }
    }
}

/// Descriptions of the operands in the library's words, and how it will go about it.
#[derive(Debug)]
struct Plan {
    description: sys::cublasLtMatmulDesc_t,
    /// First, second matrix, result.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: they were created by the library and are destroyed once.
        unsafe {
            for layout in self.layouts {
                let _ = result::destroy_matrix_layout(layout);
            }
            let _ = result::destroy_matmul_desc(self.description);
        }
    }
}

impl Blas {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        // SAFETY: the library needs nothing of this process to be loaded. Without it no other
        // function may be called: cudarc would panic.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoLibrary {
                name: "libcublasLt",
                tried: "libcublasLt.so.13, libcublasLt.so.12, libcublasLt.so".to_owned(),
                advice: "install the CUDA toolkit or `pip install nvidia-cublas`, and let the \
                         loader find it (LD_LIBRARY_PATH)",
            });
        }
        context.bind()?;
        let mut memory = CardMemory::new(context);
        let workspace = memory.alloc(WORKSPACE).map_err(|error| match error {
            RawError::Fault(fault) => CudaError::Fault(fault),
            RawError::Full { free } => CudaError::Memory(MemoryError::DeviceFull {
                asked: WORKSPACE,
                free,
                largest: free,
                owners: Shares::default(),
            }),
        })?;
        let mut blas = Self {
            context: Arc::clone(context),
            handle: std::ptr::null_mut(),
            memory,
            workspace: Some(workspace),
            plans: HashMap::new(),
        };
        blas.handle = result::create_handle().map_err(|error| blas.fault(error))?;
        Ok(blas)
    }

    /// The library's codes say less than the driver's: what is not memory has broken something.
    fn fault(&self, error: CublasError) -> GpuFault {
        let kind = match error.0 {
            sys::cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED => FaultKind::OutOfMemory,
            _ => FaultKind::Sticky,
        };
        GpuFault::new(self.context.device(), kind)
    }

    /// Begins a product. Where the library cannot add the bias with it, the launch that does is
    /// handed back.
    pub(super) fn run(&mut self, gemm: &Gemm, stream: &Stream) -> Result<Option<Launch>, GpuFault> {
        if let Some(bias) = gemm.bias {
            if self.planned(Shape::of(gemm, true))? {
                self.begin(gemm, true, stream)?;
                return Ok(None);
            }
            self.begin_planned(gemm, stream)?;
            return Ok(Some(bias_launch(gemm, bias)));
        }
        self.begin_planned(gemm, stream)?;
        Ok(None)
    }

    /// # Panics
    /// If the library knows no way: sizes and strides are checked above, so that is a mistake of
    /// this crate.
    fn begin_planned(&mut self, gemm: &Gemm, stream: &Stream) -> Result<(), GpuFault> {
        assert!(
            self.planned(Shape::of(gemm, false))?,
            "cuBLASLt takes no product {gemm:?}"
        );
        self.begin(gemm, false, stream)
    }

    /// Returns true when there is a plan, made now if need be.
    fn planned(&mut self, shape: Shape) -> Result<bool, GpuFault> {
        if let Some(plan) = self.plans.get(&shape) {
            return Ok(plan.is_some());
        }
        let plan = match plan(self.handle, shape) {
            Ok(plan) => Some(plan),
            Err(CublasError(
                sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED
                | sys::cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE,
            )) => None,
            Err(error) => return Err(self.fault(error)),
        };
        let there = plan.is_some();
        if self.plans.len() >= PLANS_MAX {
            self.plans.clear();
        }
        self.plans.insert(shape, plan);
        Ok(there)
    }

    fn begin(&self, gemm: &Gemm, with_bias: bool, stream: &Stream) -> Result<(), GpuFault> {
        let Some(plan) = self
            .plans
            .get(&Shape::of(gemm, with_bias))
            .and_then(Option::as_ref)
        else {
            return Ok(());
        };
        let (c, beta) = match gemm.addend {
            Addend::Zero => (gemm.c, 0.0f32),
            Addend::Destination => (gemm.c, 1.0),
            Addend::Residual(address) => (address, 1.0),
        };
        let alpha = f32::from_bits(gemm.scale);
        let workspace = self.workspace.as_ref().map_or(0, |block| block.address);
        let [first, second, out] = plan.layouts;
        // SAFETY: the plan's parts live as long as it does; the factors outlive the call, which
        // reads them; addresses are followed by the card alone. The stream is the driver's, which
        // the library knows by another name.
        let done = unsafe {
            if let (true, Some(bias)) = (with_bias, gemm.bias) {
                set_description(
                    plan.description,
                    DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                    &bias,
                )
                .map_err(|error| self.fault(error))?;
            }
            result::matmul(
                self.handle,
                plan.description,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                gemm.b.address as *const c_void,
                first,
                gemm.a.address as *const c_void,
                second,
                c as *const c_void,
                out,
                gemm.c as *mut c_void,
                out,
                &raw const plan.algorithm,
                workspace as *mut c_void,
                WORKSPACE as usize,
                stream.handle().cast(),
            )
        };
        done.map_err(|error| self.fault(error))
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        self.plans.clear();
        if self.context.bind().is_ok() {
            if !self.handle.is_null() {
                // SAFETY: it was created once, and its plans are gone.
                let _ = unsafe { result::destroy_handle(self.handle) };
            }
            if let Some(workspace) = self.workspace.take() {
                // A broken context takes nothing back; the process's end does.
                let _ = self.memory.free(workspace);
            }
        }
    }
}

/// Adds the bias to contiguous rows.
fn bias_launch(gemm: &Gemm, bias: u64) -> Launch {
    assert!(
        gemm.batch == 1 && gemm.ldc == gemm.n,
        "a bias on contiguous rows"
    );
    Launch {
        kernel: Kernel::add_bias.into(),
        grid: [gemm.m as u32, gemm.n.div_ceil(1024) as u32, 1],
        block: 256,
        shared: 0,
        args: vec![
            Arg::Pointer(bias),
            Arg::Pointer(gemm.c),
            Arg::U32(gemm.n as u32),
        ],
    }
}

/// # Safety
///
/// The attribute has the value's type.
unsafe fn set_description<T>(
    description: sys::cublasLtMatmulDesc_t,
    attribute: DescAttribute,
    value: &T,
) -> Result<(), CublasError> {
    let place = std::ptr::from_ref(value).cast();
    // SAFETY: as the caller promises; the value is read before the call returns.
    unsafe { result::set_matmul_desc_attribute(description, attribute, place, size_of::<T>()) }
}

/// One of the library's matrices: `rows x cols` by its count, columns first.
fn layout(
    format: Format,
    [rows, cols, ld]: [u64; 3],
    count: u64,
    batch: u64,
) -> Result<sys::cublasLtMatrixLayout_t, CublasError> {
    let kind = match format {
        Format::F32 => sys::cudaDataType::CUDA_R_32F,
        Format::Bf16 => sys::cudaDataType::CUDA_R_16BF,
    };
    let layout = result::create_matrix_layout(kind, rows, cols, ld as i64)?;
    if count > 1 {
        let (count, batch) = (count as i32, batch as i64);
        // SAFETY: the attributes have these types, and are read before the calls return.
        let set = unsafe {
            result::set_matrix_layout_attribute(
                layout,
                LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                (&raw const count).cast(),
                size_of::<i32>(),
            )
            .and_then(|()| {
                result::set_matrix_layout_attribute(
                    layout,
                    LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                    (&raw const batch).cast(),
                    size_of::<i64>(),
                )
            })
        };
        if let Err(error) = set {
            // SAFETY: it was created above.
            let _ = unsafe { result::destroy_matrix_layout(layout) };
            return Err(error);
        }
    }
    Ok(layout)
}

fn plan(handle: sys::cublasLtHandle_t, shape: Shape) -> Result<Plan, CublasError> {
    let [batch, m, n, k] = shape.sizes;
    let description = result::create_matmul_desc(
        sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        sys::cudaDataType::CUDA_R_32F,
    )?;
    let lines = |operand: OperandShape, straight: [u64; 2], turned: [u64; 2]| {
        let [rows, cols] = if operand.turned { turned } else { straight };
        layout(
            operand.format,
            [rows, cols, operand.ld],
            batch,
            operand.batch,
        )
    };
    let mut plan = Plan {
        description,
        layouts: [std::ptr::null_mut(); 3],
        algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
    };
    plan.layouts[0] = lines(shape.b, [n, k], [k, n])?;
    plan.layouts[1] = lines(shape.a, [k, m], [m, k])?;
    plan.layouts[2] = layout(Format::F32, [n, m, shape.ldc], batch, shape.c_batch)?;
    let preference = result::create_matmul_pref()?;
    // SAFETY: everything was created above; attributes have the types of the library's manual. The
    // preference is destroyed on every path.
    unsafe {
        let found = describe(&plan, preference, shape).and_then(|()| {
            let [first, second, out] = plan.layouts;
            result::get_matmul_algo_heuristic(
                handle,
                plan.description,
                first,
                second,
                out,
                out,
                preference,
            )
        });
        let _ = result::destroy_matmul_pref(preference);
        plan.algorithm = found?.algo;
    }
    Ok(plan)
}

/// # Safety
///
/// All parts of the plan and the preference are the library's.
unsafe fn describe(
    plan: &Plan,
    preference: sys::cublasLtMatmulPreference_t,
    shape: Shape,
) -> Result<(), CublasError> {
    let operation = |operand: OperandShape| {
        if operand.turned { TURNED } else { STRAIGHT }
    };
    let addend = shape.addend_alignment.unwrap_or(shape.c_alignment);
    // SAFETY: as the caller promises.
    unsafe {
        let (first, second) = (operation(shape.b), operation(shape.a));
        set_description(
            plan.description,
            DescAttribute::CUBLASLT_MATMUL_DESC_TRANSA,
            &first,
        )?;
        set_description(
            plan.description,
            DescAttribute::CUBLASLT_MATMUL_DESC_TRANSB,
            &second,
        )?;
        if shape.bias {
            let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
            set_description(
                plan.description,
                DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE,
                &epilogue,
            )?;
        }
        for (attribute, bytes) in [
            (
                Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                shape.b.alignment,
            ),
            (
                Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                shape.a.alignment,
            ),
            (
                Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                addend,
            ),
            (
                Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
                shape.c_alignment,
            ),
        ] {
            let place = (&raw const bytes).cast();
            result::set_matmul_pref_attribute(preference, attribute, place, size_of::<u32>())?;
        }
        let bytes = WORKSPACE as usize;
        result::set_matmul_pref_attribute(
            preference,
            Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
            (&raw const bytes).cast(),
            size_of::<usize>(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_as_aligned_as_their_last_bits() {
        assert_eq!([1024, 256, 48, 8, 2].map(alignment), [256, 256, 16, 8, 2]);
    }
}

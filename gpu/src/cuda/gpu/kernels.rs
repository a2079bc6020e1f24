//! Kernels on the card, looked up once.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

use parking_lot::Mutex;

use super::api::{Function, Module, Stream};
use super::context::Context;
use crate::cuda::cache::KernelCache;
use crate::cuda::card::{Arg, Launch};
use crate::cuda::error::CudaError;
use crate::cuda::kernel::{AnyKernel, Kernel, Source, rule_name};
use crate::cuda::nvrtc::{Nvrtc, compile_cached, rule_cached};
use crate::update_rule::RuleText;
use odeon_devices::fault::GpuFault;

/// Shared memory that a block may have without being allowed more, in bytes.
const SHARED_GRANTED: u32 = 48 << 10;

#[derive(Debug)]
pub(super) struct Kernels {
    context: Arc<Context>,
    cache: KernelCache,
    functions: HashMap<Kernel, Function>,
    /// Of update rules, made when they are first needed. Modules stand behind the functions, which live
    /// in them.
    rules: Mutex<HashMap<RuleText, (Function, Module)>>,
    /// Shared memory that functions were allowed.
    allowed: Mutex<HashMap<AnyKernel, u32>>,
    /// Behind the functions, which live in them.
    _modules: Vec<Module>,
}

impl Kernels {
    /// Compiles what the cache does not hold, and loads all.
    pub(super) fn load(context: &Arc<Context>, cache: &KernelCache) -> Result<Self, CudaError> {
        let nvrtc = Nvrtc::load()?;
        let (mut functions, mut modules) = (HashMap::new(), Vec::new());
        for source in Source::ALL {
            let code = compile_cached(&nvrtc, cache, *source, context.arch())?;
            let module = Module::load(context, &code)?;
            for kernel in Kernel::ALL
                .iter()
                .filter(|kernel| kernel.source() == *source)
            {
                functions.insert(*kernel, module.function(kernel.name())?);
            }
            modules.push(module);
        }
        Ok(Self {
            context: Arc::clone(context),
            cache: cache.clone(),
            functions,
            rules: Mutex::default(),
            allowed: Mutex::default(),
            _modules: modules,
        })
    }

    /// Compiles a rule's kernel that the cache does not hold, and loads it.
    pub(super) fn prepare(&self, rule: RuleText) -> Result<(), CudaError> {
        let mut rules = self.rules.lock();
        if rules.contains_key(&rule) {
            return Ok(());
        }
        let code = rule_cached(&Nvrtc::load()?, &self.cache, rule, self.context.arch())?;
        let module = Module::load(&self.context, &code)?;
        let function = module.function(&rule_name(rule))?;
        rules.insert(rule, (function, module));
        Ok(())
    }

    pub(super) fn launch(&self, launch: &Launch, stream: &Stream) -> Result<(), GpuFault> {
        let function = match &launch.kernel {
            AnyKernel::Own(kernel) => self.functions[kernel],
            AnyKernel::Rule(rule) => self.rules.lock()[rule].0,
        };
        if launch.shared > SHARED_GRANTED {
            let mut allowed = self.allowed.lock();
            let held = allowed.entry(launch.kernel).or_insert(SHARED_GRANTED);
            if *held < launch.shared {
                function.allow_shared(self.context.device(), launch.shared)?;
                *held = launch.shared;
            }
        }
        let mut args: Vec<u64> = launch.args.iter().copied().map(Arg::bits).collect();
        let mut params: Vec<*mut c_void> = args
            .iter_mut()
            .map(|arg| (&raw mut *arg).cast::<c_void>())
            .collect();
        // SAFETY: the function's module is loaded as long as `self` lives. The emulated card checks
        // in tests that every launch gives the arguments that its kernel takes, by number and type;
        // each lies in the first bytes of its place, as little-endian machines have it.
        unsafe {
            stream.launch(
                function.0,
                launch.grid,
                launch.block,
                launch.shared,
                &mut params,
            )
        }
    }
}

const _: () = assert!(
    cfg!(target_endian = "little"),
    "arguments by their first bytes"
);

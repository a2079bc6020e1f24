//! Faults behind the driver's error codes.

use odeon_devices::fault::{FaultKind, GpuFault};

/// The fault behind an error code of the driver (`CUresult`), by NVIDIA's description of the codes.
///
/// After most errors of a kernel the context is unusable for good: those are sticky. A code that
/// says nothing of the device, such as an argument that is refused, is a mistake of the caller's
/// and counts as sticky too: what the process would do next cannot be relied on.
#[must_use]
pub fn fault_of(device: u32, code: u32) -> GpuFault {
    let kind = match code {
        // CUDA_ERROR_OUT_OF_MEMORY
        2 => FaultKind::OutOfMemory,
        // CUDA_ERROR_ECC_UNCORRECTABLE
        214 => FaultKind::Ecc,
        // CUDA_ERROR_NVLINK_UNCORRECTABLE: Xid 74.
        220 => FaultKind::Xid { code: 74 },
        // CUDA_ERROR_DEVICE_UNAVAILABLE, NO_DEVICE, INVALID_DEVICE, EXTERNAL_DEVICE,
        // SYSTEM_NOT_READY, and UNKNOWN, which is what a device that fell off the bus answers.
        46 | 100 | 101 | 911 | 802 | 999 => FaultKind::Lost,
        // CUDA_ERROR_ILLEGAL_ADDRESS: Xid 31.
        700 => FaultKind::Xid { code: 31 },
        // CUDA_ERROR_HARDWARE_STACK_ERROR, ILLEGAL_INSTRUCTION, MISALIGNED_ADDRESS,
        // INVALID_ADDRESS_SPACE, INVALID_PC, ASSERT: exceptions of the program, Xid 13.
        710 | 714..=718 => FaultKind::Xid { code: 13 },
        // CUDA_ERROR_LAUNCH_TIMEOUT, LAUNCH_FAILED, CONTEXT_IS_DESTROYED and all others.
        _ => FaultKind::Sticky,
    };
    GpuFault::new(device, kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use odeon_devices::fault::Remedy;

    #[test]
    fn codes_of_the_driver_become_faults_with_a_remedy() {
        for (code, remedy) in [
            (2, Remedy::FreeMemory),
            (214, Remedy::QuarantineDevice),
            (220, Remedy::QuarantineDevice),
            (999, Remedy::QuarantineDevice),
            (46, Remedy::QuarantineDevice),
            (700, Remedy::ReplaceProcess),
            (716, Remedy::ReplaceProcess),
            (719, Remedy::ReplaceProcess),
            (702, Remedy::ReplaceProcess),
            (1, Remedy::ReplaceProcess),
        ] {
            let fault = fault_of(3, code);
            assert_eq!(
                (fault.device, fault.remedy()),
                (3, remedy),
                "{code}: {fault}"
            );
        }
    }
}

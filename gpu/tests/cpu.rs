//! The processor back-end passes the conformance suite, on one thread and on several.

mod one_thread {
    odeon_gpu::conformance_tests!(odeon_gpu::Cpu::new(1));
}

mod three_threads {
    odeon_gpu::conformance_tests!(odeon_gpu::Cpu::new(3));
}

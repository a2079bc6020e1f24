//! The processor back-end passes the conformance suite, on one thread, on several, with sums in one
//! order, and chosen at run time.

mod one_thread {
    odeon_gpu::conformance_tests!(odeon_gpu::Cpu::new(1));
}

mod three_threads {
    odeon_gpu::conformance_tests!(odeon_gpu::Cpu::new(3));
}

mod deterministic {
    odeon_gpu::conformance_tests!(odeon_gpu::Cpu::deterministic(2));
}

mod any {
    odeon_gpu::conformance_tests!(odeon_gpu::Any::Cpu(odeon_gpu::Cpu::new(2)));
}

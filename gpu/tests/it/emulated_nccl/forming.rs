//! Obstacles that keep ranks from coming together are told by all of them.

use std::path::Path;

use odeon_collective::{Collective, Fault};
use odeon_gpu::cuda::CudaError;
use odeon_gpu::cuda::nccl::{Nccl, NcclError, NcclLibrary};

use super::rig::{SHORT, Standin, card, each, fault, ranks};

#[test]
fn a_rank_that_never_forms_is_named() {
    let Some(standin) = Standin::new("") else {
        return;
    };
    let mut all = ranks(3);
    // It is alive, and does not come.
    let absent = all.remove(1);
    each(all, |mut comm| {
        comm.set_deadline(SHORT);
        let error = Nccl::form(comm, &card(), &standin.library).unwrap_err();
        let NcclError::Collective(error) = error else {
            panic!("{error}")
        };
        assert_eq!(fault(&error).ranks(), [1], "{error}");
    });
    drop(absent);
}

#[test]
fn a_rank_whose_nccl_does_not_begin_is_named_by_all() {
    let Some(standin) = Standin::new("fail-init 1") else {
        return;
    };
    each(ranks(3), |comm| {
        let error = Nccl::form(comm, &card(), &standin.library).unwrap_err();
        let NcclError::Collective(error) = error else {
            panic!("{error}")
        };
        let text = error.to_string();
        assert!(
            matches!(fault(&error), Fault::Device { rank: 1, .. }),
            "{text}"
        );
        assert!(text.contains("ncclCommInitRankConfig"), "{text}");
    });
}

#[test]
fn two_ranks_on_one_device_are_refused() {
    let Some(standin) = Standin::new("") else {
        return;
    };
    let shared = card();
    let errors = each(ranks(3), |comm| {
        let rank = comm.membership().rank;
        let card = if rank == 1 { card() } else { shared.clone() };
        Nccl::form(comm, &card, &standin.library).unwrap_err()
    });
    for error in errors {
        assert!(
            matches!(error, NcclError::SharedDevice { ranks: (0, 2), .. }),
            "{error}"
        );
    }
}

#[test]
fn versions_that_differ_are_refused() {
    let (Some(old), Some(new)) = (Standin::new("version 21805"), Standin::new("version 22703"))
    else {
        return;
    };
    let errors = each(ranks(2), |comm| {
        let library = [&old, &new][comm.membership().rank].library;
        Nccl::form(comm, &card(), &library).unwrap_err()
    });
    for error in errors {
        let text = error.to_string();
        assert!(
            text.contains("rank 0 has 2.18.5, rank 1 has 2.27.3"),
            "{text}"
        );
    }
}

#[test]
fn a_library_that_is_absent_or_too_old_is_an_error_in_words() {
    let absent = NcclLibrary::at(Path::new("/nowhere/libnccl.so.2")).unwrap_err();
    assert!(matches!(absent, CudaError::NoLibrary { .. }), "{absent}");
    let Some(standin) = Standin::new("") else {
        return;
    };
    standin.behave("version 21602");
    let old = NcclLibrary::at(&standin.folder.path().join("libnccl.so.2")).unwrap_err();
    assert!(matches!(old, CudaError::OldLibrary { .. }), "{old}");
    assert!(old.to_string().contains("2.16.2"), "{old}");
}

//! The inner product of packed weights with explicit registers: the sums of a block of rows stay in
//! registers over all inputs, which a plain loop does not achieve.

use std::arch::x86_64::{
    _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps,
    _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps,
};

use super::PANEL;

/// `sums[r] = x[r] panel` for up to 12 rows.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn v4(inputs: usize, x: &[f32], panel: &[f32], sums: &mut [[f32; PANEL]]) {
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
    fn rows<const R: usize>(inputs: usize, x: &[f32], panel: &[f32], sums: &mut [[f32; PANEL]]) {
        let mut acc = [_mm512_setzero_ps(); R];
        assert!(
            x.len() >= R * inputs,
            "a row of inputs for each row of sums"
        );
        for (k, w) in panel.as_chunks::<PANEL>().0[..inputs].iter().enumerate() {
            // SAFETY: `w` is sixteen elements.
            let w = unsafe { _mm512_loadu_ps(w.as_ptr()) };
            for (r, acc) in acc.iter_mut().enumerate() {
                // SAFETY: `r < R` and `k < inputs`, which the assertion bounds.
                let x = unsafe { *x.get_unchecked(r * inputs + k) };
                *acc = _mm512_fmadd_ps(_mm512_set1_ps(x), w, *acc);
            }
        }
        for (acc, sums) in acc.iter().zip(sums) {
            // SAFETY: `sums` is sixteen elements.
            unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), *acc) };
        }
    }
    match sums.len() {
        1 => rows::<1>(inputs, x, panel, sums),
        2 => rows::<2>(inputs, x, panel, sums),
        3 => rows::<3>(inputs, x, panel, sums),
        4 => rows::<4>(inputs, x, panel, sums),
        5 => rows::<5>(inputs, x, panel, sums),
        6 => rows::<6>(inputs, x, panel, sums),
        7 => rows::<7>(inputs, x, panel, sums),
        8 => rows::<8>(inputs, x, panel, sums),
        9 => rows::<9>(inputs, x, panel, sums),
        10 => rows::<10>(inputs, x, panel, sums),
        11 => rows::<11>(inputs, x, panel, sums),
        12 => rows::<12>(inputs, x, panel, sums),
        n => unreachable!("a block of {n} rows"),
    }
}

/// `sums[r] = x[r] panel` for up to 6 rows.
#[target_feature(enable = "avx2,fma")]
pub(super) fn v3(inputs: usize, x: &[f32], panel: &[f32], sums: &mut [[f32; PANEL]]) {
    #[target_feature(enable = "avx2,fma")]
    fn rows<const R: usize>(inputs: usize, x: &[f32], panel: &[f32], sums: &mut [[f32; PANEL]]) {
        let mut acc = [[_mm256_setzero_ps(); 2]; R];
        assert!(
            x.len() >= R * inputs,
            "a row of inputs for each row of sums"
        );
        for (k, w) in panel.as_chunks::<PANEL>().0[..inputs].iter().enumerate() {
            // SAFETY: `w` is sixteen elements.
            let w = unsafe {
                [
                    _mm256_loadu_ps(w.as_ptr()),
                    _mm256_loadu_ps(w.as_ptr().add(8)),
                ]
            };
            for (r, acc) in acc.iter_mut().enumerate() {
                // SAFETY: `r < R` and `k < inputs`, which the assertion bounds.
                let x = unsafe { _mm256_set1_ps(*x.get_unchecked(r * inputs + k)) };
                *acc = [
                    _mm256_fmadd_ps(x, w[0], acc[0]),
                    _mm256_fmadd_ps(x, w[1], acc[1]),
                ];
            }
        }
        for (acc, sums) in acc.iter().zip(sums) {
            // SAFETY: `sums` is sixteen elements.
            unsafe {
                _mm256_storeu_ps(sums.as_mut_ptr(), acc[0]);
                _mm256_storeu_ps(sums.as_mut_ptr().add(8), acc[1]);
            }
        }
    }
    match sums.len() {
        1 => rows::<1>(inputs, x, panel, sums),
        2 => rows::<2>(inputs, x, panel, sums),
        3 => rows::<3>(inputs, x, panel, sums),
        4 => rows::<4>(inputs, x, panel, sums),
        5 => rows::<5>(inputs, x, panel, sums),
        6 => rows::<6>(inputs, x, panel, sums),
        n => unreachable!("a block of {n} rows"),
    }
}

//! The kernels: CUDA C++ sources that are part of the binary, and the names of what they hold.

macro_rules! kernels {
    ($($source:ident $file:literal: $($name:ident)*;)*) => {
        /// A file of kernels.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Source {
            $(#[doc = concat!("`kernels/", $file, ".cu`.")] $source,)*
        }

        impl Source {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$source,)*];

            /// Name of the file without its ending.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$source => $file,)*
                }
            }

            /// The text of the file, without what is common to all.
            #[must_use]
            pub fn body(self) -> &'static str {
                match self {
                    $(Self::$source => include_str!(concat!("kernels/", $file, ".cu")),)*
                }
            }
        }

        /// A kernel, by its name in the source.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, missing_docs, reason = "names as in the sources")]
        pub enum Kernel {
            $($($name,)*)*
        }

        impl Kernel {
            /// All of them.
            pub const ALL: &[Self] = &[$($(Self::$name,)*)*];

            /// Its name in the source.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $($(Self::$name => stringify!($name),)*)*
                }
            }

            /// The file that it stands in.
            #[must_use]
            pub fn source(self) -> Source {
                match self {
                    $($(Self::$name => Source::$source,)*)*
                }
            }
        }
    };
}

kernels! {
    Flat "flat": fill scale axpy add_bias column_sums add_parts square_parts add_squares round_flat
        round_rows gather_rows adamw;
    Rows "rows": rms_norm rms_norm_dx rms_norm_dweight rope swiglu swiglu_backward gather scatter
        combine_dsrc combine_dweights softmax;
    Vocab "vocab": vocab_fold vocab_finish vocab_gradient vocab_gradient_bf16;
    Attention "attention": attention_round attention_delta
        attention_forward_32 attention_dkv_32 attention_dq_32
        attention_forward_64 attention_dkv_64 attention_dq_64
        attention_forward_96 attention_dkv_96 attention_dq_96
        attention_forward_128 attention_dkv_128 attention_dq_128
        attention_forward_f32 attention_dkv_f32 attention_dq_f32;
    Decode "decode": cache_append_f32 cache_append_bf16 cache_attention_f32 cache_attention_bf16
        cache_combine packed_linear_1 packed_linear_2 packed_linear_4 packed_linear_8
        packed_linear_f32;
}

/// The text before the body of every source.
pub const HEAD: &str = include_str!("kernels/head.cuh");

impl Source {
    /// The whole text, as a compiler takes it.
    #[must_use]
    pub fn text(self) -> String {
        format!("{HEAD}\n#line 1 \"{}.cu\"\n{}", self.name(), self.body())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_stands_in_its_source_and_every_source_is_named() {
        for kernel in Kernel::ALL {
            let (name, body) = (kernel.name(), kernel.source().body());
            let made = name.rsplit_once('_').is_some_and(|(stem, size)| {
                let (attention, packed) = (format!("{stem}_##D"), format!("{stem}_##N"));
                size.parse::<u32>().is_ok()
                    && (body.contains(&attention) && body.contains(&format!("ATTENTION({size})"))
                        || body.contains(&packed) && body.contains(&format!("PACKED({size})")))
            });
            assert!(
                made || body.contains(&format!("KERNEL {name}(")),
                "{name} is not in {}.cu",
                kernel.source().name()
            );
        }
        for source in Source::ALL {
            let written = source.body().matches("\nKERNEL ").count();
            let plain = Kernel::ALL.iter().filter(|kernel| {
                let text = format!("KERNEL {}(", kernel.name());
                kernel.source() == *source && source.body().contains(&text)
            });
            assert_eq!(plain.count(), written, "kernels of {}.cu", source.name());
        }
    }
}

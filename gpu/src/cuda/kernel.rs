//! The kernels: CUDA C++ sources that are part of the binary, the names of what they hold, and those
//! that are made of the text of an update rule.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::update_rule::RuleText;

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
    Flat "flat": fill scale axpy narrow widen add_bias column_sums add_parts square_parts add_squares round_flat
        round_rows gather_rows;
    Rows "rows": rms_norm rms_norm_dx rms_norm_dweight head_norm head_norm_dx
        head_norm_dweight layer_norm layer_norm_dx layer_norm_dweight rope swiglu swiglu_backward
        gelu gelu_backward dropout gather scatter
        combine_dsrc combine_dweights softmax route route_backward;
    Vocab "vocab": vocab_fold vocab_finish vocab_gradient vocab_gradient_bf16;
    Attention "attention": attention_round attention_delta
        attention_forward_32 attention_dkv_32 attention_dq_32
        attention_forward_64 attention_dkv_64 attention_dq_64
        attention_forward_96 attention_dkv_96 attention_dq_96
        attention_forward_128 attention_dkv_128 attention_dq_128
        attention_forward_f32 attention_dkv_f32 attention_dq_f32
        block_attention_forward_32 block_attention_dkv_32 block_attention_dq_32
        block_attention_forward_64 block_attention_dkv_64 block_attention_dq_64
        block_attention_forward_96 block_attention_dkv_96 block_attention_dq_96
        block_attention_forward_128 block_attention_dkv_128 block_attention_dq_128
        block_attention_forward_f32 block_attention_dkv_f32 block_attention_dq_f32;
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

/// A kernel that a launch names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnyKernel {
    /// One of the sources.
    Own(Kernel),
    /// One made of a rule's text.
    Rule(RuleText),
}

impl AnyKernel {
    /// Its name in the source.
    #[must_use]
    pub fn name(&self) -> Cow<'static, str> {
        match self {
            Self::Own(kernel) => kernel.name().into(),
            Self::Rule(rule) => rule_name(*rule).into(),
        }
    }
}

impl From<Kernel> for AnyKernel {
    fn from(kernel: Kernel) -> Self {
        Self::Own(kernel)
    }
}

impl From<RuleText> for AnyKernel {
    fn from(rule: RuleText) -> Self {
        Self::Rule(rule)
    }
}

/// Name of a rule's kernel.
#[must_use]
pub fn rule_name(rule: RuleText) -> String {
    format!("update_{}", rule.name)
}

/// The text of a rule's kernel, without what is common to all: the rule as a function, and the loop
/// around it, in which nothing has a name of the rule's.
#[must_use]
pub fn rule_body(rule: RuleText) -> String {
    let RuleText {
        parameter,
        gradient,
        states,
        numbers,
        body,
        ..
    } = rule;
    let each =
        |count: usize, make: &dyn Fn(usize) -> String| -> String { (0..count).map(make).collect() };
    let (kept, given) = (states.len(), numbers.len());
    let mut text = format!("#define RULE {}\n#define STATES {kept}\n", rule_name(rule));
    for (name, value) in [
        ("BUFFERS", each(kept, &|k| format!("float* b{k}, "))),
        ("POINTERS", each(kept, &|k| format!("b{k}, "))),
        ("NUMBERS", each(given, &|n| format!(", float n{n}"))),
        (
            "ELEMENT(e)",
            format!(
                "element(p[e], g[e]{}{})",
                each(kept, &|k| format!(", s[{k}][e]")),
                each(given, &|n| format!(", n{n}"))
            ),
        ),
        ("let", "const float".to_owned()),
    ] {
        // A text that is written cannot fail.
        let _ = writeln!(text, "#define {name} {value}");
    }
    let _ = writeln!(
        text,
        "INLINE void element(float& {parameter}, float {gradient}{}{}) {{\n{body}\n}}\n#undef let",
        each(kept, &|k| format!(", float& {}", states[k])),
        each(given, &|n| format!(", float {}", numbers[n])),
    );
    text + "#line 1 \"update.cu\"\n" + include_str!("kernels/update.cu")
}

/// The whole text of a rule's kernel, as a compiler takes it.
#[must_use]
pub fn rule_text(rule: RuleText) -> String {
    format!("{HEAD}\n{}", rule_body(rule))
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

//! The parameters of a method besides `self`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Error, FnArg, GenericArgument, PatType, PathArguments, Result, Signature, Type};

/// One parameter, in the order of the method's signature.
pub(crate) enum Param<'a> {
    /// `&mut Context<Self>`.
    Context,
    Value(&'a PatType),
}

/// The parameters of a method besides its receiver.
pub(crate) struct Params<'a>(Vec<Param<'a>>);

impl<'a> Params<'a> {
    pub(crate) fn of(signature: &'a Signature) -> Result<Self> {
        let mut params = vec![];
        for input in &signature.inputs {
            let FnArg::Typed(typed) = input else { continue };
            if !is_context(&typed.ty) {
                params.push(Param::Value(typed));
            } else if params.iter().any(|param| matches!(param, Param::Context)) {
                return Err(Error::new_spanned(typed, "there is one context, not two"));
            } else {
                params.push(Param::Context);
            }
        }
        Ok(Self(params))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &'a PatType> + '_ {
        self.0.iter().filter_map(|param| match param {
            Param::Context => None,
            Param::Value(value) => Some(*value),
        })
    }

    /// The only value; `None` when there is none.
    pub(crate) fn at_most_one(&self, why: &str) -> Result<Option<&'a PatType>> {
        let mut values = self.values();
        let first = values.next();
        match values.next() {
            Some(second) => Err(Error::new_spanned(second, why)),
            None => Ok(first),
        }
    }

    /// The arguments of a call: `cx` for the context, `value` for each of the others.
    pub(crate) fn pass(&self, value: impl Fn(&PatType) -> TokenStream) -> TokenStream {
        self.0
            .iter()
            .map(|param| match param {
                Param::Context => quote!(cx,),
                Param::Value(typed) => {
                    let value = value(typed);
                    quote!(#value,)
                }
            })
            .collect()
    }

    /// The pattern that binds the context: `cx`, or `_` where nobody takes it.
    pub(crate) fn context_pattern(&self) -> TokenStream {
        if self.0.iter().any(|param| matches!(param, Param::Context)) {
            quote!(cx)
        } else {
            quote!(_)
        }
    }
}

/// A macro sees no types, so any reference to something called `Context` counts.
fn is_context(ty: &Type) -> bool {
    let Type::Reference(reference) = ty else {
        return false;
    };
    let Type::Path(path) = &*reference.elem else {
        return false;
    };
    path.path
        .segments
        .last()
        .is_some_and(|segment| segment.ident == "Context")
}

/// That a method has no type or const parameters.
pub(crate) fn refuse_generics(signature: &Signature, why: &str) -> Result<()> {
    let generics = &signature.generics;
    match generics
        .params
        .iter()
        .find(|param| !matches!(param, syn::GenericParam::Lifetime(_)))
    {
        Some(param) => Err(Error::new_spanned(param, why)),
        None => Ok(()),
    }
}

/// `.await` after a call of an async function.
pub(crate) fn awaited(signature: &Signature) -> TokenStream {
    if signature.asyncness.is_some() {
        quote!(.await)
    } else {
        TokenStream::new()
    }
}

/// The value in a `Result` whose error cannot travel as it is, and is answered as a `Failure`: the result
/// of one type, as `anyhow::Result<T>` and `std::io::Result<T>`, or one with an error of these. A macro
/// sees no types, so it goes by how they are written; any other error is the program's own.
pub(crate) fn carried(ty: &Type) -> Option<&Type> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last()?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return None;
    };
    let mut types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    });
    let (value, error) = (types.next()?, types.next());
    (last.ident == "Result" && error.is_none_or(stays)).then_some(value)
}

/// Returns true for the errors of `anyhow`, `eyre` and input and output, and those in a box.
fn stays(error: &Type) -> bool {
    let Type::Path(path) = error else {
        return false;
    };
    let names: Vec<String> = path
        .path
        .segments
        .iter()
        .map(|it| it.ident.to_string())
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    matches!(
        names[..],
        ["anyhow", "Error"]
            | ["eyre" | "color_eyre", "Report"]
            | ["io", "Error"]
            | ["std", "io", "Error"]
            | ["Box"]
    )
}

#[cfg(test)]
mod tests {
    use quote::ToTokens;
    use syn::parse_quote;

    use super::*;

    #[test]
    fn errors_that_cannot_travel_are_known_by_how_they_are_written() {
        let value = |ty: Type| carried(&ty).map(|value| value.to_token_stream().to_string());
        let any: [Type; 5] = [
            parse_quote!(anyhow::Result<u64>),
            parse_quote!(std::io::Result<u64>),
            parse_quote!(Result<u64, anyhow::Error>),
            parse_quote!(Result<u64, std::io::Error>),
            parse_quote!(Result<u64, Box<dyn std::error::Error + Send + Sync>>),
        ];
        for ty in any {
            assert_eq!(value(ty).as_deref(), Some("u64"));
        }
        let own: [Type; 4] = [
            parse_quote!(Result<u64, Refused>),
            parse_quote!(Result<u64, Failure>),
            parse_quote!(Option<u64>),
            parse_quote!(u64),
        ];
        for ty in own {
            assert_eq!(value(ty), None);
        }
    }
}

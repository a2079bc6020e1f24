//! `#[boxed]`.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{
    Error, FnArg, GenericParam, ItemFn, Lifetime, LifetimeParam, Result, ReturnType, TypeReference,
    parse_quote,
};

pub(crate) fn expand(item: TokenStream) -> Result<TokenStream> {
    // A method parses as a function, but for its receiver's place.
    let mut function: ItemFn = syn::parse2(item)?;
    let signature = &mut function.sig;
    let Some(asyncness) = signature.asyncness.take() else {
        let why = "`#[boxed]` goes on an `async fn`";
        return Err(Error::new_spanned(signature.fn_token, why));
    };
    if signature.generics.type_params().next().is_some() {
        let why =
            "a generic function is compiled where it is called: boxing its future saves nothing";
        return Err(Error::new_spanned(&signature.generics, why));
    }
    let mut elided = Elided::default();
    for input in &mut signature.inputs {
        elided.visit_fn_arg_mut(input);
    }
    let output = match &mut signature.output {
        ReturnType::Default => quote!(()),
        ReturnType::Type(_, output) => {
            elided.visit_type_mut(output);
            quote!(#output)
        }
    };
    let future: Lifetime = parse_quote!('future);
    let named = signature.generics.lifetimes().next().is_some();
    let bound = if elided.any || named {
        for parameter in signature.generics.lifetimes_mut() {
            parameter.bounds.push(future.clone());
        }
        let parameter = GenericParam::Lifetime(LifetimeParam::new(future.clone()));
        signature.generics.params.insert(0, parameter);
        quote!('future)
    } else {
        quote!('static)
    };
    signature.output = parse_quote! {
        -> ::core::pin::Pin<::std::boxed::Box<
            dyn ::core::future::Future<Output = #output> + ::core::marker::Send + #bound
        >>
    };
    let body = &function.block;
    let made = quote_spanned! {asyncness.span()=> ::std::boxed::Box::pin(async move #body) };
    function.block = parse_quote!({ #made });
    Ok(quote!(#function))
}

/// Names the lifetimes that were left out.
#[derive(Default)]
struct Elided {
    any: bool,
}

impl VisitMut for Elided {
    fn visit_fn_arg_mut(&mut self, input: &mut FnArg) {
        if let FnArg::Receiver(receiver) = input
            && let Some((_, lifetime @ None)) = &mut receiver.reference
        {
            self.any = true;
            *lifetime = Some(parse_quote!('future));
            // The type of `&self` is written out of it.
            if let syn::Type::Reference(reference) = &mut *receiver.ty {
                reference.lifetime = Some(parse_quote!('future));
            }
            return;
        }
        visit_mut::visit_fn_arg_mut(self, input);
    }

    fn visit_type_reference_mut(&mut self, reference: &mut TypeReference) {
        if reference.lifetime.is_none() {
            self.any = true;
            reference.lifetime = Some(parse_quote!('future));
        }
        visit_mut::visit_type_reference_mut(self, reference);
    }

    fn visit_lifetime_mut(&mut self, lifetime: &mut Lifetime) {
        if lifetime.ident == "_" {
            self.any = true;
            *lifetime = parse_quote!('future);
        }
    }
}

#[cfg(test)]
mod tests {
    use quote::ToTokens;

    use super::*;

    fn check(from: TokenStream, to: TokenStream) {
        let parse = |tokens| syn::parse2::<ItemFn>(tokens).unwrap().into_token_stream();
        let expanded = parse(expand(from).unwrap());
        // The formatter adds commas.
        let text = |function: TokenStream| function.to_string().replace(" ,", "");
        assert_eq!(text(expanded), text(parse(to)));
    }

    #[test]
    fn lifetimes_that_were_left_out_are_those_of_the_future() {
        check(
            quote!(
                pub async fn find(&self, name: &str) -> Option<Row<'_>> {
                    self.rows.get(name)
                }
            ),
            quote!(
                pub fn find<'future>(
                    &'future self,
                    name: &'future str,
                ) -> ::core::pin::Pin<
                    ::std::boxed::Box<
                        dyn ::core::future::Future<Output = Option<Row<'future>>>
                            + ::core::marker::Send
                            + 'future,
                    >,
                > {
                    ::std::boxed::Box::pin(async move { self.rows.get(name) })
                }
            ),
        );
    }

    #[test]
    fn a_future_that_borrows_nothing_is_static() {
        let expanded = expand(quote!(
            async fn end(self) {}
        ));
        assert!(expanded.unwrap().to_string().contains("'static"));
    }

    #[test]
    fn generic_functions_are_refused() {
        assert!(
            expand(quote!(
                async fn ask<M>(&self, message: M) {}
            ))
            .is_err()
        );
        assert!(
            expand(quote!(
                fn ask(&self) {}
            ))
            .is_err()
        );
    }
}

//! `#[test]`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Error, Ident, ItemFn, LitInt, Result, Token, Type, parenthesized};

/// Threads of a test's runtime unless it says otherwise: one may block, another still attends links.
const THREADS: usize = 2;

pub(crate) fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let Options { actors, threads } = syn::parse2(options)?;
    let ItemFn {
        attrs,
        vis,
        sig,
        block,
    } = syn::parse2(item)?;
    let name = &sig.ident;
    if sig.asyncness.is_none() {
        return Err(Error::new_spanned(
            sig.fn_token,
            "`#[odeon::test]` goes on an `async fn`: a test that waits for nothing is a `#[test]`",
        ));
    }
    if let Some(generics) = sig.generics.params.first() {
        return Err(Error::new_spanned(generics, "a test cannot be generic"));
    }
    let given = match sig.inputs.len() {
        0 => quote!(|_| #name()),
        1 => quote!(#name),
        _ => {
            return Err(Error::new_spanned(
                &sig.inputs,
                "a test takes the system and nothing else: `async fn it_works(system: System)`",
            ));
        }
    };
    let output = &sig.output;
    let text = name.to_string();
    Ok(quote! {
        #[::core::prelude::v1::test]
        #(#attrs)*
        #vis fn #name() #output {
            #sig #block
            let test = ::odeon::testing::Test {
                job: ::odeon::job![#actors],
                module: ::core::module_path!(),
                name: #text,
                threads: #threads,
            };
            test.run(#given)
        }
    })
}

/// The arguments of `#[test(..)]`.
struct Options {
    actors: Punctuated<Type, Token![,]>,
    threads: usize,
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut options = Self {
            actors: Punctuated::new(),
            threads: THREADS,
        };
        while !input.is_empty() {
            let option: Ident = input.parse()?;
            if option == "actors" {
                let listed;
                parenthesized!(listed in input);
                options.actors = Punctuated::parse_terminated(&listed)?;
            } else if option == "worker_threads" {
                input.parse::<Token![=]>()?;
                let number: LitInt = input.parse()?;
                options.threads = number.base10_parse()?;
                if options.threads == 0 {
                    return Err(Error::new(number.span(), "a runtime has a thread at least"));
                }
            } else {
                let why = "expected `actors(Counter, Store)` or `worker_threads = 4`";
                return Err(Error::new(option.span(), why));
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(options)
    }
}

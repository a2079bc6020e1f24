//! The checks of a type that a macro implements traits for: see `odeon::check`.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{GenericArgument, Generics, PathArguments, Type};

/// The checks of a value that travels. Each is an error of its own at the place of what it is about.
#[derive(Default)]
pub(crate) struct Checks(Vec<TokenStream>);

impl Checks {
    /// That values of a type travel: it has a shape, and is encoded by serde.
    pub(crate) fn travels(&mut self, ty: &Type) {
        if surely_travels(ty) {
            return;
        }
        self.has_shape(ty);
        self.0.push(quote_spanned! {at(ty)=>
            ::odeon::check::encoded::<#ty, _>(&::odeon::check::Shaped::<#ty>::SHAPED);
        });
    }

    /// That a type has a shape.
    pub(crate) fn has_shape(&mut self, ty: &Type) {
        let shape = quote_spanned!(at(ty)=> let _ = <#ty as ::odeon::Shape>::SHAPE;);
        self.0.push(shape);
    }

    /// That actors are made from a type.
    pub(crate) fn arguments(&mut self, ty: &Type) {
        self.0.push(quote!(::odeon::check::arguments::<#ty>();));
    }

    /// That an actor moves between threads.
    pub(crate) fn moves(&mut self, actor: &Type) {
        let moves = quote!(::odeon::check::moves_between_threads::<#actor>(););
        self.0.push(moves);
    }

    /// That a type is a message.
    pub(crate) fn message(&mut self, ty: &Type) {
        self.0.push(quote!(::odeon::check::message::<#ty>();));
    }

    /// What is refused already, in the words that it is refused in, which the compiler says once.
    pub(crate) fn refuse(&mut self, errors: &TokenStream) {
        self.0.push(errors.clone());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `impl Checked` of a value, when there is anything to check.
    pub(crate) fn implement(&self, value: &TokenStream) -> TokenStream {
        match self.is_empty() {
            true => TokenStream::new(),
            false => self.implement_as(value, &quote!(::odeon::check::TravellingValue)),
        }
    }

    /// `impl Checked` of an actor.
    pub(crate) fn implement_actor(&self, actor: &Type) -> TokenStream {
        self.implement_as(&quote!(#actor), &quote!(::odeon::check::ActorState))
    }

    fn implement_as(&self, ty: &TokenStream, part: &TokenStream) -> TokenStream {
        let checks = &self.0;
        quote! {
            impl ::odeon::check::Checked<#part> for #ty {
                type Sound = <::odeon::check::Checks<{
                    #[allow(unused_imports, reason = "of use where a type has no shape")]
                    use ::odeon::check::Unshaped as _;
                    #(#checks)*
                    true
                }> as ::odeon::check::CheckOutcome>::Sound;
            }
        }
    }

    /// The bound that all which is implemented for the value has on its checks.
    pub(crate) fn bound(&self, value: &TokenStream, bound: &TokenStream) -> TokenStream {
        if self.is_empty() {
            return TokenStream::new();
        }
        let sound = sound(value, &quote!(::odeon::check::TravellingValue));
        quote!(#sound: #bound,)
    }
}

/// The type of an actor, as the head of an `impl` names it.
pub(crate) struct Subject<'a> {
    pub(crate) ty: &'a Type,
    /// Of a type that is refused for them.
    pub(crate) generics: &'a Generics,
    pub(crate) args: Option<&'a Type>,
}

impl Subject<'_> {
    /// The head of an `impl` of a trait. A bound on the actor's checks goes into it.
    pub(crate) fn implement(&self, at: Span, of: &TokenStream, bound: &TokenStream) -> TokenStream {
        let Self { ty, generics, .. } = self;
        let (impl_generics, _, _) = generics.split_for_impl();
        let bounds = self.bounds(bound);
        quote_spanned!(at=> impl #impl_generics #of for #ty where #bounds)
    }

    /// The bounds of such an `impl`.
    pub(crate) fn bounds(&self, bound: &TokenStream) -> TokenStream {
        let Self { ty, generics, args } = self;
        if self.is_generic() {
            let given = generics.where_clause.iter().flat_map(|it| &it.predicates);
            let args = args.map(|args| quote!(#args: ::odeon::ActorArgs,));
            return quote!(#(#given,)* #ty: ::core::marker::Send + 'static, #args);
        }
        let sound = self.sound();
        quote!(#sound: #bound,)
    }

    /// A type that the compiler has given up on when a check does not hold.
    pub(crate) fn sound(&self) -> TokenStream {
        let ty = self.ty;
        sound(&quote!(#ty), &quote!(::odeon::check::ActorState))
    }

    pub(crate) fn is_generic(&self) -> bool {
        !self.generics.params.is_empty()
    }
}

/// The outcome of the checks. A bound on it holds when they do, and nothing is said of it when they do not.
fn sound(ty: &TokenStream, part: &TokenStream) -> TokenStream {
    quote!(<#ty as ::odeon::check::Checked<#part>>::Sound)
}

fn at(ty: &Type) -> Span {
    Span::call_site().located_at(ty.span())
}

/// Returns true for types that are known to travel by how they are written: most messages need no checks.
pub(crate) fn surely_travels(ty: &Type) -> bool {
    match ty {
        Type::Tuple(tuple) => tuple.elems.len() <= 12 && tuple.elems.iter().all(surely_travels),
        Type::Path(path) if path.qself.is_none() && path.path.segments.len() == 1 => {
            let segment = &path.path.segments[0];
            match &segment.arguments {
                PathArguments::None => PLAIN.iter().any(|it| segment.ident == it),
                PathArguments::AngleBracketed(arguments) => {
                    segment.ident == "Ref"
                        || HOLDS.iter().any(|it| segment.ident == it)
                            && arguments.args.iter().all(
                                |it| matches!(it, GenericArgument::Type(ty) if surely_travels(ty)),
                            )
                }
                PathArguments::Parenthesized(_) => false,
            }
        }
        _ => false,
    }
}

/// Types by their names. One of the program's own with such a name is no mistake: what it lacks is said in more words.
const PLAIN: [&str; 19] = [
    "bool", "char", "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128",
    "isize", "f32", "f64", "String", "Duration", "PathBuf",
];
const HOLDS: [&str; 5] = ["Box", "Option", "Result", "Vec", "VecDeque"];

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    #[test]
    fn types_that_surely_travel_are_known_by_how_they_are_written() {
        let known: [Type; 4] = [
            parse_quote!(()),
            parse_quote!(Result<Vec<(u8, String)>, String>),
            parse_quote!(Option<Ref<Store>>),
            parse_quote!(Duration),
        ];
        assert!(known.iter().all(surely_travels));
        let unknown: [Type; 5] = [
            parse_quote!(Point),
            parse_quote!(Vec<Point>),
            parse_quote!([u8; 64]),
            parse_quote!(shop::String),
            parse_quote!(&u8),
        ];
        assert!(!unknown.iter().any(surely_travels));
    }
}

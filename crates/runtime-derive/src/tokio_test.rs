//! tokio's `#[test]` with another default: a multi-thread runtime.
//!
//! The attribute adds `flavor = "multi_thread"` to the arguments and leaves the rest to tokio's own attribute. A test that
//! names a flavor keeps it. So does a test with `start_paused` or `unhandled_panic`, which tokio has only on current-thread
//! runtimes.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::{Expr, ExprLit, Lit, Meta, Path, Token};

/// The arguments with which tokio's attribute runs the test on the runtime that the program wants.
const KEEPS_FLAVOR: [&str; 3] = ["flavor", "start_paused", "unhandled_panic"];

/// Returns the item below tokio's own attribute. After a syntax error in the arguments they stay as they are, and tokio's
/// attribute reports it.
pub(crate) fn expand(args: TokenStream, item: TokenStream) -> TokenStream {
    let list = Punctuated::<Meta, Token![,]>::parse_terminated.parse2(args.clone()).unwrap_or_default();
    let krate = list.iter().find_map(crate_path).unwrap_or_else(|| syn::parse_quote!(::tokio));
    let keeps_flavor = list.is_empty() != args.is_empty()
        || list.iter().any(|arg| KEEPS_FLAVOR.iter().any(|name| arg.path().is_ident(name)));
    if keeps_flavor {
        return quote!(#[#krate::warmcore::test(#args)] #item);
    }
    quote!(#[#krate::warmcore::test(flavor = "multi_thread", #list)] #item)
}

/// The value of `crate = "path"`.
fn crate_path(arg: &Meta) -> Option<Path> {
    let Meta::NameValue(pair) = arg else { return None };
    let Expr::Lit(ExprLit { lit: Lit::Str(path), .. }) = &pair.value else { return None };
    pair.path.is_ident("crate").then(|| path.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::expand;
    use proc_macro2::TokenStream;
    use quote::quote;

    /// What the attribute with these arguments leaves to tokio's.
    fn attribute(args: TokenStream) -> String {
        let expanded = expand(
            args,
            quote!(
                async fn works() {}
            ),
        )
        .to_string();
        expanded.strip_suffix(" async fn works () { }").expect("the item is unchanged").to_owned()
    }

    fn of(expected: TokenStream) -> String {
        expected.to_string()
    }

    #[test]
    fn a_test_without_a_flavor_gets_one() {
        assert_eq!(attribute(quote!()), of(quote!(#[::tokio::warmcore::test(flavor = "multi_thread",)])));
        assert_eq!(
            attribute(quote!(name = "x", crate = "a::b")),
            of(quote!(#[a::b::warmcore::test(flavor = "multi_thread", name = "x", crate = "a::b")]))
        );
    }

    #[test]
    fn a_test_that_chooses_keeps_its_runtime() {
        for args in [
            quote!(flavor = "current_thread"),
            quote!(start_paused = true),
            quote!(unhandled_panic = "ignore", name = "x"),
            quote!(flavor = "multi_thread", worker_threads = 3,),
        ] {
            assert_eq!(attribute(args.clone()), of(quote!(#[::tokio::warmcore::test(#args)])));
        }
    }

    #[test]
    fn what_is_no_list_is_left_to_tokio() {
        let args = quote!(flavor = = 1);
        assert_eq!(attribute(args.clone()), of(quote!(#[::tokio::warmcore::test(#args)])));
    }
}

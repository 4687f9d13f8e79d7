//! Zeroable: all zeros are a valid value of a struct if they are a valid value of each field.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Result, parse_quote};

pub(crate) fn expand(mut item: DeriveInput) -> Result<TokenStream> {
    let ident = item.ident.clone();
    let Data::Struct(data) = &item.data else {
        let text =
            format!("Zeroable is derived for structs here, and `{ident}` is none; use `bytemuck::Zeroable`");
        return Err(Error::new_spanned(&ident, text));
    };
    let bound: TokenStream = quote!(::warmcore::prelude::Zeroable);
    // With the span of the field, so that the error underlines its type. In a trait, so that the type may be `Self`.
    let checks = data.fields.iter().map(|field| {
        let ty = &field.ty;
        quote_spanned!(ty.span()=> __is_zeroable::<#ty>();)
    });
    let checks: Vec<_> = checks.collect();
    for parameter in item.generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(#bound));
    }
    let (impl_generics, ty_generics, where_clause) = item.generics.split_for_impl();
    Ok(quote! {
        const _: () = {
            #[allow(dead_code)]
            trait __Fields {
                fn __check();
            }
            #[allow(clippy::multiple_bound_locations)]
            impl #impl_generics __Fields for #ident #ty_generics #where_clause {
                fn __check() {
                    fn __is_zeroable<T: #bound>() {}
                    #(#checks)*
                }
            }
            // SAFETY: `__check` compiles only if zeros are valid in every field, and a struct consists of its fields.
            #[automatically_derived]
            unsafe impl #impl_generics #bound for #ident #ty_generics #where_clause {}
        };
    })
}

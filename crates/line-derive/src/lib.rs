#![doc = include_str!("../README.md")]

use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::meta::ParseNestedMeta;
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Error, Field, GenericParam, Generics, Ident, LitStr, Member};
use syn::{Path, Result, Token, Type, parse_quote};

/// Implements `warmcore_line::Line`; the trait's page describes the attributes.
#[proc_macro_derive(Line, attributes(line))]
pub fn line(item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let item = syn::parse_macro_input!(item as DeriveInput);
    expand(&item, parse_quote!(::warmcore_line)).unwrap_or_else(Error::into_compile_error).into()
}

/// Implements `warmcore::line::Line`, for crates that depend on `warmcore`; the trait's page describes the attributes.
#[proc_macro_derive(FacadeLine, attributes(line))]
pub fn facade_line(item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let item = syn::parse_macro_input!(item as DeriveInput);
    expand(&item, parse_quote!(::warmcore::line)).unwrap_or_else(Error::into_compile_error).into()
}

/// Implements `warmcore::prelude::Zeroable`, which is bytemuck's, for a struct all of whose fields are `Zeroable`. Each
/// type parameter must be `Zeroable` too. For enums and unions use `bytemuck`'s own derive.
#[proc_macro_derive(FacadeZeroable)]
pub fn facade_zeroable(item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let item = syn::parse_macro_input!(item as DeriveInput);
    expand_zeroable(item).unwrap_or_else(Error::into_compile_error).into()
}

/// The options in all `#[line(..)]` on the struct.
struct Options {
    krate: Path,
    pair: bool,
    default: Option<Group>,
}

/// The group of `#[line(..)]` on a field.
#[derive(Clone)]
struct Group {
    /// A variant of `warmcore_line::Access`.
    access: Ident,
    /// Empty for a group without a name.
    name: String,
}

fn expand(item: &DeriveInput, krate: Path) -> Result<TokenStream> {
    let fields = match &item.data {
        Data::Struct(data) => &data.fields,
        Data::Enum(_) => return Err(not_a_struct(&item.ident, "an enum")),
        Data::Union(_) => return Err(not_a_struct(&item.ident, "a union")),
    };
    let Options { krate, pair, default } = options(&item.attrs, krate)?;

    // Check all fields before returning, so that one build shows the errors of all fields.
    let mut table = Vec::new();
    let mut wrong: Option<Error> = None;
    for (i, field) in fields.iter().enumerate() {
        // `Fields::members` is missing in older versions of syn, which a user's lock file may have.
        let member = field.ident.clone().map_or(Member::from(i), Member::from);
        match group(field, &member, default.as_ref()) {
            Ok(group) => table.push(entry(&krate, field, &member, &group)),
            Err(error) => match &mut wrong {
                Some(wrong) => wrong.combine(error),
                None => wrong = Some(error),
            },
        }
    }
    if let Some(wrong) = wrong {
        return Err(wrong);
    }

    let ident = &item.ident;
    let name = ident.unraw().to_string();
    let unit = pair.then(|| quote!(const UNIT: usize = #krate::PAIR;));
    let (impl_generics, ty_generics, where_clause) = item.generics.split_for_impl();
    let check = check(&krate, ident, &item.generics);
    Ok(quote! {
        #[automatically_derived]
        #[allow(deprecated)]
        impl #impl_generics #krate::Line for #ident #ty_generics #where_clause {
            const NAME: &'static ::core::primitive::str = #name;
            #unit
            const FIELDS: &'static [#krate::FieldLine<'static>] = &[#(#table),*];
        }
        #check
    })
}

fn not_a_struct(ident: &Ident, what: &str) -> Error {
    let text = format!(
        "Line is for structs, and `{ident}` is {what}, whose fields lie over one another; \
         make it a field of a struct and give that field a group"
    );
    Error::new_spanned(ident, text)
}

/// Generates an element of `Line::FIELDS`.
fn entry(krate: &Path, field: &Field, member: &Member, group: &Group) -> TokenStream {
    let (Group { access, name: group }, ty) = (group, &field.ty);
    let name = plain(member);
    quote! {
        #krate::FieldLine {
            name: #name,
            group: #krate::Group { access: #krate::Access::#access, name: #group },
            offset: ::core::mem::offset_of!(Self, #member),
            size: ::core::mem::size_of::<#ty>(),
        }
    }
}

/// Generates the constant that fails the build if fields of different groups share a unit (a cache line, or with `pair`
/// a pair of them), or if the struct is not aligned to a unit. `None` for a struct with type or const parameters, on
/// which its layout may depend.
fn check(krate: &Path, ident: &Ident, generics: &Generics) -> Option<TokenStream> {
    let open = generics.params.iter().any(|p| !matches!(p, GenericParam::Lifetime(_)));
    // Lifetimes do not change a layout.
    let lifetimes = generics.lifetimes().map(|_| quote!('_));
    // The whole call has the span of the struct's name, so the compiler underlines the name. The path `krate` would
    // have a span of its own in the call; therefore a `use` imports the function.
    let call = quote_spanned!(ident.span()=> __assert_lines::<#ident<#(#lifetimes),*>>());
    let import = quote_spanned!(ident.span()=> use #krate::assert_lines as __assert_lines;);
    (!open).then(|| quote!(const _: () = { #import #call };))
}

fn options(attrs: &[Attribute], krate: Path) -> Result<Options> {
    let mut options = Options { krate, pair: false, default: None };
    for_each_meta(attrs, |meta| {
        if meta.path.is_ident("pair") {
            options.pair = true;
        } else if meta.path.is_ident("default") {
            let word: Path = meta.value()?.parse()?;
            let access = access(&word).ok_or_else(|| unknown_group(&word))?;
            options.default = Some(Group { access, name: String::new() });
        } else if meta.path.is_ident("crate") {
            options.krate = meta.value()?.parse()?;
        } else if access(&meta.path).is_some() {
            let word = plain_path(&meta.path);
            let text = format!("a group stands on a field; for all fields without one, `default = {word}`");
            return Err(meta.error(text));
        } else {
            let word = plain_path(&meta.path);
            let text =
                format!("unknown option `{word}`; a struct takes `pair`, `default = ..` or `crate = ..`");
            return Err(meta.error(text));
        }
        Ok(())
    })?;
    Ok(options)
}

fn group(field: &Field, member: &Member, default: Option<&Group>) -> Result<Group> {
    let mut found: Option<Group> = None;
    for_each_meta(&field.attrs, |meta| {
        let access = access(&meta.path).ok_or_else(|| unknown_group(&meta.path))?;
        if found.is_some() {
            return Err(meta.error("a second group; a field is in one, so remove the other"));
        }
        let mut name = String::new();
        if meta.input.peek(Token![=]) {
            let unquoted = |e: Error| Error::new(e.span(), "a group's name is a string; put it in quotes");
            let literal: LitStr = meta.value()?.parse().map_err(unquoted)?;
            name = literal.value();
            if name.is_empty() {
                return Err(Error::new_spanned(
                    literal,
                    "an empty name; remove it, or say whose group it is",
                ));
            }
        }
        found = Some(Group { access, name });
        Ok(())
    })?;
    if let Some(group) = found.or_else(|| default.cloned()) {
        return Ok(group);
    }
    if is_phantom(&field.ty) {
        // PhantomData and PhantomPinned have no bytes, so any group is correct. Another type of one of these names is
        // checked as read-mostly.
        return Ok(Group { access: format_ident!("ReadMostly"), name: String::new() });
    }
    let text = format!(
        "field '{}' has no group; add #[line(read_mostly)], #[line(owner)] or #[line(contended)], \
         or #[line(default = read_mostly)] on the struct",
        plain(member)
    );
    Err(match &field.ident {
        Some(ident) => Error::new_spanned(ident, text),
        None => Error::new_spanned(&field.ty, text),
    })
}

fn for_each_meta(attrs: &[Attribute], mut read: impl FnMut(ParseNestedMeta) -> Result<()>) -> Result<()> {
    attrs.iter().filter(|a| a.path().is_ident("line")).try_for_each(|a| a.parse_nested_meta(&mut read))
}

/// Returns the variant of `warmcore_line::Access` for a word, or `None` if it has none.
fn access(word: &Path) -> Option<Ident> {
    let variants = [("read_mostly", "ReadMostly"), ("owner", "Owner"), ("contended", "Contended")];
    variants.iter().find(|(w, _)| word.is_ident(w)).map(|(_, variant)| format_ident!("{variant}"))
}

fn unknown_group(word: &Path) -> Error {
    let text = format!("unknown group `{}`; it is `read_mostly`, `owner` or `contended`", plain_path(word));
    Error::new_spanned(word, text)
}

fn is_phantom(ty: &Type) -> bool {
    let Type::Path(path) = ty else { return false };
    path.path.segments.last().is_some_and(|s| s.ident == "PhantomData" || s.ident == "PhantomPinned")
}

fn plain(member: &Member) -> String {
    match member {
        Member::Named(ident) => ident.unraw().to_string(),
        Member::Unnamed(index) => index.index.to_string(),
    }
}

fn plain_path(path: &Path) -> String {
    path.segments.iter().map(|s| s.ident.to_string()).collect::<Vec<_>>().join("::")
}

/// Implements `Zeroable`: all zeros are a valid value of a struct if they are a valid value of each field.
fn expand_zeroable(mut item: DeriveInput) -> Result<TokenStream> {
    let ident = item.ident.clone();
    let Data::Struct(data) = &item.data else {
        let text =
            format!("Zeroable is derived for structs here, and `{ident}` is none; use `bytemuck::Zeroable`");
        return Err(Error::new_spanned(&ident, text));
    };
    let bound: TokenStream = quote!(::warmcore::prelude::Zeroable);
    // The checks have the span of the field's type, so that the error underlines it. They are in a trait's function, so
    // that the type may be `Self`.
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

//! The attributes `#[warmcore::main]` and `#[warmcore::test]`, which the crate `warmcore` re-exports.
//!
//! The attribute moves the annotated function, without its attributes, into a function that is not async. The outer
//! function builds a runtime and blocks on the inner function. So the compiler checks the user's own code, and its
//! errors point there. Attributes go to the outer function. Mistakes in the arguments, such as an unknown argument or
//! policy, are compile errors at the wrong word.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Error, Ident, ItemFn, LitInt, LitStr, Path, Result, Token, parse_quote};

mod tokio_test;

/// Each policy's name, and its variant of `warmcore_sched::PolicyKind`.
const POLICIES: [(&str, &str); 2] = [("home", "Home"), ("shared-queue", "SharedQueue")];

/// The largest number of workers of a runtime.
const WORKERS_MAX: usize = 4096;

/// Runs an `async fn main` on a Warmcore runtime. The function's body runs on the main thread; tasks that it spawns
/// run on the workers. `main` may return any type that a `main` may return, so `?` works.
///
/// ```ignore
/// #[warmcore::main]
/// async fn main() -> std::io::Result<()> {
///     let answer = warmcore::spawn(async { 42 }).await.expect("it does not panic");
///     assert_eq!(answer, 42);
///     Ok(())
/// }
/// ```
///
/// | argument | meaning | default |
/// |---|---|---|
/// | `worker_threads = 4` | number of workers | one for each CPU of the process, or fewer by a cgroup's quota |
/// | `policy = "home"` | where woken tasks go: `home` or `shared-queue` | `home` |
/// | `name = "orders"` | name of the threads | `warmcore` |
/// | `crate = ::warmcore` | path of `Runtime` and `PolicyKind`, for crates that re-export them | `::warmcore` |
///
/// Panics with the reason if no runtime can be built. For other settings, or to handle the error, use
/// `Runtime::builder()`.
#[proc_macro_attribute]
pub fn main(args: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    expand(MacroKind::Main, args.into(), item.into()).into()
}

/// Runs an `async fn` as a test on its own Warmcore runtime. By default the runtime has two workers, so that two tasks
/// can run at once. The attribute takes the arguments of [`macro@main`]. `#[should_panic]`, `#[ignore]` and similar
/// attributes work; a test may return a `Result`.
///
/// ```ignore
/// #[warmcore::test(worker_threads = 4, policy = "shared-queue")]
/// async fn a_task_returns_its_output() {
///     assert_eq!(warmcore::spawn(async { 42 }).await.unwrap(), 42);
/// }
/// ```
#[proc_macro_attribute]
pub fn test(args: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    expand(MacroKind::Test, args.into(), item.into()).into()
}

/// `#[tokio::test]` in a package that stands in tokio's place: a test without a `flavor` runs on a multi-thread runtime,
/// so that test suites whose tests have tokio's default flavour run on Warmcore's scheduler. The package re-exports the
/// attribute if it has the feature `warmcore_test_multi_thread`.
#[doc(hidden)]
#[proc_macro_attribute]
pub fn test_multi_thread(
    args: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    tokio_test::expand(args.into(), item.into()).into()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MacroKind {
    Main,
    Test,
}

impl MacroKind {
    fn name(self) -> &'static str {
        if self == Self::Main { "main" } else { "test" }
    }
}

/// The arguments of the attribute.
struct Args {
    krate: Path,
    worker_threads: Option<LitInt>,
    policy: Option<Ident>,
    name: Option<LitStr>,
}

impl Parse for Args {
    fn parse(input: ParseStream) -> Result<Self> {
        let mut args =
            Self { krate: parse_quote!(::warmcore), worker_threads: None, policy: None, name: None };
        let mut seen = Vec::<Ident>::new();
        while !input.is_empty() {
            // `parse_any`, because `crate` is a keyword.
            let word = Ident::parse_any(input)?;
            if seen.contains(&word) {
                return Err(Error::new(word.span(), format!("`{word}` is given twice; remove one")));
            }
            let Some(example) = example(&word) else { return Err(unknown(&word)) };
            let needs_value = |_| Error::new(word.span(), format!("`{word}` needs a value: {example}"));
            input.parse::<Token![=]>().map_err(needs_value)?;
            let needs_text = |error: Error| {
                Error::new(error.span(), format!("`{word}` is a string; put it in quotes: {example}"))
            };
            match word.to_string().as_str() {
                "worker_threads" => args.worker_threads = Some(worker_threads(input)?),
                "policy" => args.policy = Some(policy(&input.parse().map_err(needs_text)?)?),
                "name" => args.name = Some(name(input.parse().map_err(needs_text)?)?),
                _ => {
                    args.krate = input.call(Path::parse_mod_style).map_err(|error| {
                        let text = format!("`crate` needs a path, without quotes: {example}");
                        Error::new(error.span(), text)
                    })?;
                }
            }
            seen.push(word);
            if input.is_empty() {
                break;
            }
            input.parse::<Token![,]>()?;
        }
        Ok(args)
    }
}

/// How an argument is written. `None`: there is no such argument.
fn example(word: &Ident) -> Option<&'static str> {
    match word.to_string().as_str() {
        "worker_threads" => Some("`worker_threads = 4`"),
        "policy" => Some("`policy = \"home\"`"),
        "name" => Some("`name = \"orders\"`"),
        "crate" => Some("`crate = ::warmcore`"),
        _ => None,
    }
}

fn unknown(word: &Ident) -> Error {
    let hint = match word.to_string().as_str() {
        "workers" | "threads" | "worker" => "; how many workers is `worker_threads = 4`",
        "flavor" => "; there is one flavor, so remove it",
        "start_paused" => "; time is tokio's own and can't be stopped here, so remove it",
        _ => "; there are `worker_threads`, `policy`, `name` and `crate`",
    };
    Error::new(word.span(), format!("unknown argument `{word}`{hint}"))
}

fn worker_threads(input: ParseStream) -> Result<LitInt> {
    let number: LitInt = input
        .parse()
        .map_err(|error| Error::new(error.span(), "how many workers is a number: `worker_threads = 4`"))?;
    match number.base10_parse::<usize>() {
        Ok(1..=WORKERS_MAX) => {
            // Drops the number's suffix if it has one, because the builder takes a usize.
            Ok(LitInt::new(number.base10_digits(), number.span()))
        }
        _ => {
            let text = format!("{number} workers; 1 to {WORKERS_MAX} are possible");
            Err(Error::new(number.span(), text))
        }
    }
}

fn policy(literal: &LitStr) -> Result<Ident> {
    let said = literal.value();
    let Some((_, variant)) = POLICIES.iter().find(|(name, _)| *name == said) else {
        let names = POLICIES.map(|(name, _)| name).join(", ");
        return Err(Error::new(literal.span(), format!("no policy `{said}`; choose one of {names}")));
    };
    Ok(format_ident!("{variant}"))
}

fn name(literal: LitStr) -> Result<LitStr> {
    let said = literal.value();
    let text = if said.is_empty() {
        "an empty name; remove it, or say what the threads are called"
    } else if said.contains('\0') {
        "a thread's name holds no zero byte"
    } else {
        return Ok(literal);
    };
    Err(Error::new(literal.span(), text))
}

/// Returns the code to which the attribute expands. After a mistake that is the errors and a function of the same name,
/// so that calls of the function cause no further errors; after a syntax error it is the error and the item itself.
fn expand(kind: MacroKind, args: TokenStream, item: TokenStream) -> TokenStream {
    let function: ItemFn = match syn::parse2(item.clone()) {
        Ok(function) => function,
        Err(mut error) => {
            if is_no_function(&item) {
                let text = format!("#[warmcore::{}] goes on an `async fn`", kind.name());
                error = Error::new(first_span(&item), text);
            }
            let error = error.into_compile_error();
            // After a syntax error in the body the compiler reports its own error in the item, in the right place.
            return quote!(#error #item);
        }
    };
    let error = match (syn::parse2(args), check(kind, &function)) {
        (Ok(args), Ok(())) => return build(kind, &args, function),
        (Ok(_), Err(error)) | (Err(error), Ok(())) => error,
        (Err(mut error), Err(another)) => {
            error.combine(another);
            error
        }
    };
    let error = error.into_compile_error();
    let ItemFn { mut attrs, vis, mut sig, .. } = function;
    sig.asyncness = None;
    // A second test attribute is removed, because it would report another error.
    attrs.retain(|attribute| !is_test(attribute.path()));
    quote! { #error #(#attrs)* #[allow(unused_variables)] #vis #sig { ::core::unreachable!() } }
}

/// Whether the item is not a function, because it has no word `fn`.
fn is_no_function(item: &TokenStream) -> bool {
    !item.clone().into_iter().any(|token| token.to_string() == "fn")
}

fn first_span(item: &TokenStream) -> Span {
    item.clone().into_iter().next().map_or_else(Span::call_site, |token| token.span())
}

fn check(kind: MacroKind, function: &ItemFn) -> Result<()> {
    let sig = &function.sig;
    let name = kind.name();
    if sig.asyncness.is_none() {
        let text = format!("#[warmcore::{name}] runs an `async fn`; write `async fn {}`", sig.ident);
        return Err(Error::new_spanned(sig.fn_token, text));
    }
    if !sig.inputs.is_empty() {
        let text = format!("`{}` takes arguments, but no code passes them; remove them", sig.ident);
        return Err(Error::new_spanned(&sig.inputs, text));
    }
    if !sig.generics.params.is_empty() {
        let text = format!("`{}` can't be generic, because no code chooses the types", sig.ident);
        return Err(Error::new_spanned(&sig.generics, text));
    }
    if let Some(token) = &sig.constness {
        return Err(Error::new_spanned(token, "a runtime is made while the program runs; remove `const`"));
    }
    if let (MacroKind::Test, Some(attribute)) = (kind, function.attrs.iter().find(|a| is_test(a.path()))) {
        let text = "a second test attribute; the test would run twice, so remove one";
        return Err(Error::new_spanned(attribute, text));
    }
    Ok(())
}

/// Whether the attribute's last word is `test`, as in `#[test]`, `#[tokio::test]` and `#[warmcore::test]`.
fn is_test(path: &Path) -> bool {
    path.segments.last().is_some_and(|last| last.ident == "test")
}

fn build(kind: MacroKind, args: &Args, function: ItemFn) -> TokenStream {
    let ItemFn { attrs, vis, sig, block } = function;
    let krate = &args.krate;
    let test = (kind == MacroKind::Test).then(|| quote!(#[::core::prelude::v1::test]));
    let workers = match (&args.worker_threads, kind) {
        (Some(workers), _) => Some(workers.to_token_stream()),
        (None, MacroKind::Test) => Some(quote!(2)),
        (None, MacroKind::Main) => None,
    };
    let workers = workers.map(|workers| quote!(.worker_threads(#workers)));
    let name = args.name.iter();
    let policy = args.policy.iter();
    let mut outer = sig.clone();
    outer.asyncness = None;
    let ident = &sig.ident;
    // An error in the path points at the path that the user wrote, or at the attribute.
    let made = quote_spanned!(krate.span()=> #krate::Runtime::builder());
    quote! {
        #test
        #(#attrs)*
        #vis #outer {
            #sig #block
            let made = #made #workers #(.name(#name))* #(.policy(#krate::PolicyKind::#policy))*.build();
            let runtime = match made {
                ::core::result::Result::Ok(runtime) => runtime,
                ::core::result::Result::Err(error) => ::core::panic!("no runtime can be made: {error}"),
            };
            runtime.block_on(#ident())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::POLICIES;
    use warmcore_sched::PolicyKind;

    #[test]
    fn every_policy_has_its_name_and_its_variant() {
        let real = PolicyKind::all().map(|kind| (kind.name().to_owned(), format!("{kind:?}")));
        let ours = POLICIES.map(|(name, variant)| (name.to_owned(), variant.to_owned()));
        assert_eq!(ours, real);
    }
}

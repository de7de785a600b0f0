//! The attributes `task` and `resource`. Use them by [`forebear-cluster`](https://docs.rs/forebear-cluster), which documents them where it exports them.
//!
//! Each leaves the function as it is and puts a module of the same name beside it, with one constant: the handle that is scheduled and registered.
//!
//! ```text
//!   #[task] fn score(ctx: &TaskCtx, a: u32, b: f64) -> Result<f64, E> { .. }
//!
//!   fn score(ctx: &TaskCtx, a: u32, b: f64) -> Result<f64, E> { .. }
//!   mod score { pub const TASK: TaskFn<(u32, f64), f64> = ..; }   // named "crate::path::score"
//! ```

#![forbid(unsafe_code)]

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Error, FnArg, ItemFn, LitStr, Meta, ReturnType, Safety, Type, Visibility, parse_macro_input};

/// The name of a task is the path of its function, if the attribute gives no other one. The crate `forebear-cluster` documents the rest.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, task, tasks};
///
/// #[task(name = "example.double")] // for programs that do not share the crate
/// fn double(n: u32) -> forebear::Result<u32> {
///     Ok(2 * n)
/// }
///
/// # fn main() -> Result<(), ClusterError> {
/// assert_eq!(double::TASK.name(), "example.double");
/// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![double::TASK]).start()?;
/// assert_eq!(cluster.schedule(&double::TASK, 21)?.fetch().unwrap(), 42);
/// # Ok(())
/// # }
/// ```
#[proc_macro_attribute]
pub fn task(settings: TokenStream, item: TokenStream) -> TokenStream {
    attribute(settings, item, &KINDS[0])
}

/// The name of a resource is the path of its function, if the attribute gives no other one. The crate `forebear-cluster` documents the rest.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, resource, tasks};
///
/// #[resource(name = "example.table")] // for programs that do not share the crate
/// fn table(rows: u32) -> forebear::Result<Vec<u32>> {
///     Ok((0..rows).collect())
/// }
///
/// # fn main() -> Result<(), ClusterError> {
/// assert_eq!(table::RESOURCE.name(), "example.table");
/// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![table::RESOURCE]).start()?;
/// let table = cluster.per_worker(&table::RESOURCE, 1_000)?; // an argument of tasks
/// # Ok(())
/// # }
/// ```
#[proc_macro_attribute]
pub fn resource(settings: TokenStream, item: TokenStream) -> TokenStream {
    attribute(settings, item, &KINDS[1])
}

/// What the attributes differ in: the word for messages, the type of the handle, and its name.
struct Kind {
    word: &'static str,
    handle: &'static str,
    constant: &'static str,
}

static KINDS: [Kind; 2] = [
    Kind { word: "task", handle: "TaskFn", constant: "TASK" },
    Kind { word: "resource", handle: "ResourceFn", constant: "RESOURCE" },
];

fn attribute(settings: TokenStream, item: TokenStream, kind: &Kind) -> TokenStream {
    let function = parse_macro_input!(item as ItemFn);
    let name = match name_of(settings) {
        Ok(name) => name,
        Err(error) => return error.into_compile_error().into(),
    };
    // The function is kept also if it is no task: one error is enough.
    let handle = handle(&function, name, kind).unwrap_or_else(Error::into_compile_error);
    quote! { #function #handle }.into()
}

/// `name = "..."`, or nothing.
fn name_of(settings: TokenStream) -> Result<Option<LitStr>, Error> {
    if settings.is_empty() {
        return Ok(None);
    }
    match syn::parse::<Meta>(settings)? {
        Meta::NameValue(pair) if pair.path.is_ident("name") => {
            let value = pair.value;
            syn::parse2(quote! { #value }).map(Some)
        }
        other => Err(Error::new(other.span(), "the only setting is `name = \"...\"`")),
    }
}

fn handle(function: &ItemFn, name: Option<LitStr>, kind: &Kind) -> Result<Tokens, Error> {
    let signature = &function.sig;
    let word = kind.word;
    let refuse = |span, why: &str| Err(Error::new(span, format!("a {word} {why}")));
    if let Some(asyncness) = &signature.asyncness {
        return refuse(asyncness.span(), "is no `async fn`: it waits by itself, as any request does");
    }
    if !signature.generics.params.is_empty() {
        return refuse(
            signature.generics.span(),
            "has no parameters of type or lifetime: its name stands for one function",
        );
    }
    if let Safety::Unsafe(word) = &signature.safety {
        return refuse(word.span(), "is no `unsafe fn`: a worker calls it with what comes in a message");
    }
    let ReturnType::Type(_, result) = &signature.output else {
        return refuse(signature.ident.span(), "returns a `Result`");
    };
    let mut ctx = false;
    let mut types = Vec::new();
    for (at, input) in signature.inputs.iter().enumerate() {
        let FnArg::Typed(argument) = input else {
            return refuse(input.span(), "is a function, not a method");
        };
        match &*argument.ty {
            Type::Reference(reference) if at == 0 && is_context(&reference.elem) => ctx = true,
            Type::Reference(reference) => {
                return refuse(
                    reference.span(),
                    "owns its arguments, since they come in a message, but for a first `&TaskCtx`",
                );
            }
            Type::ImplTrait(any) => return refuse(any.span(), "has arguments of one type each"),
            ty => types.push(ty),
        }
    }
    let arguments: Vec<_> = (0..types.len()).map(|n| format_ident!("a{n}")).collect();
    // One argument stands for itself, several are a tuple.
    let (pattern, tuple) = match (&arguments[..], &types[..]) {
        ([one], [ty]) => (quote! { #one }, quote! { #ty }),
        _ => (quote! { (#(#arguments),*) }, quote! { (#(#types),*) }),
    };
    let passed = ctx.then(|| quote! { ctx, });
    let (ident, visibility) = (&signature.ident, outward(&function.vis));
    let (handle, constant) = (format_ident!("{}", kind.handle), format_ident!("{}", kind.constant));
    let name = name.map_or_else(|| quote! { ::core::module_path!() }, |name| quote! { #name });
    let value = quote_spanned! { result.span() => <#result as ::forebear_cluster::Returned>::Value };
    let docs = format!("The handle of the {word} [`{ident}`](fn@{ident}).");
    let module = &function.vis;
    let module_docs = format!("What the attribute `{word}` has made of the function of this name.");
    Ok(quote! {
        #[doc = #module_docs]
        #[allow(clippy::module_inception)]
        #module mod #ident {
            #[allow(unused_imports)]
            use super::*;

            #[doc = #docs]
            #[allow(clippy::type_complexity)]
            #visibility const #constant: ::forebear_cluster::#handle<#tuple, #value> =
                ::forebear_cluster::#handle::new(#name, |ctx, #pattern| {
                    let _ = ctx;
                    super::#ident(#passed #(#arguments),*).map_err(::core::convert::Into::into)
                });
        }
    })
}

/// Whether this names the context, by whatever path.
fn is_context(ty: &Type) -> bool {
    matches!(ty, Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == "TaskCtx"))
}

/// A visibility, as it has to be written one module further in.
fn outward(visibility: &Visibility) -> Tokens {
    match visibility {
        Visibility::Inherited => quote! { pub(super) },
        Visibility::Public(public) => quote! { #public },
        Visibility::Restricted(restricted) => {
            let path = &restricted.path;
            if path.is_ident("crate") {
                quote! { pub(crate) }
            } else if path.is_ident("self") {
                quote! { pub(super) }
            } else if path.leading_colon.is_none()
                && path.segments.first().is_some_and(|first| first.ident == "super")
            {
                quote! { pub(in super::#path) }
            } else {
                quote! { pub(in #path) }
            }
        }
    }
}

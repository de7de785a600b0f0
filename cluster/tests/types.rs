//! The rows of `docs/cluster.md` whose promise is that something does not compile. Examples in the documentation show what a program cannot write. These tests name the trait that a type would have to have
//! for it, so they fail when somebody implements that.

use forebear_cluster::{PerWorker, RemoteValue, Stored, TaskCtx};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The answer for a type that does not have the trait.
trait Without {
    const HAS: bool = false;
}

impl<T: ?Sized> Without for T {}

/// Whether a type has these traits. The constant of the type itself comes before that of [`Without`], where its bound holds.
macro_rules! has {
    ($type:ty: $($traits:tt)+) => {{
        struct Probe<T: ?Sized>(std::marker::PhantomData<T>);

        #[allow(dead_code, reason = "it is there for types that have the traits alone")]
        impl<T: ?Sized + $($traits)+> Probe<T> {
            const HAS: bool = true;
        }

        <Probe<$type>>::HAS
    }};
}

#[test]
fn r32_a_value_is_no_argument_and_its_token_is_one() {
    assert!(!has!(RemoteValue<u32>: Serialize) && !has!(RemoteValue<u32>: DeserializeOwned));
    assert!(has!(Stored<u32>: Serialize + DeserializeOwned));
}

#[test]
fn r37_the_coordinator_cannot_iterate_over_what_workers_have() {
    assert!(!has!(PerWorker<Vec<u32>>: IntoIterator) && !has!(&PerWorker<Vec<u32>>: IntoIterator));
    assert!(!has!(PerWorker<Vec<u32>>: std::ops::Deref), "what it is of has methods that iterate");
    assert!(has!(Vec<u32>: IntoIterator));
}

#[test]
fn r69_nobody_but_a_task_has_a_context() {
    assert!(!has!(TaskCtx: Clone) && !has!(TaskCtx: Default), "a program could make or keep one");
    assert!(!has!(TaskCtx: DeserializeOwned) && !has!(TaskCtx: From<()>));
    assert!(has!(Stored<u32>: Clone));
}

//! What users hold and call: runtimes, requests and their builders, scopes, joins, sets, dumps.

pub(crate) mod after;
pub(crate) mod any;
pub(crate) mod builder;
pub(crate) mod chosen;
pub(crate) mod completer;
pub mod dump;
pub(crate) mod expiry;
pub(crate) mod future;
pub(crate) mod join;
pub(crate) mod no_suspend;
pub(crate) mod origin;
pub(crate) mod region;
pub(crate) mod request;
pub(crate) mod runtime;
pub(crate) mod scope;
pub(crate) mod several;
pub(crate) mod then;

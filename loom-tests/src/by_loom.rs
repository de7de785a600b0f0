//! How a model is explored by loom: every order of its steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::Answers;

/// Explores `model` within the bound that the environment sets, and fails if one of `expected` was not answered in any
/// execution, or if something else was. For three threads and more.
///
/// Loom remembers only the last access of an object, and so may leave out executions that matter; a model in which an
/// answer never occurs has not asked its question.
pub fn explore(expected: &[&'static str], model: impl Fn(&Answers) + Send + Sync + 'static) {
    check(&loom::model::Builder::new(), expected, model);
}

/// The same for a model that takes minutes: with `LOOM_SHORT`, as CI has it, at most one preemption.
pub fn explore_long(expected: &[&'static str], model: impl Fn(&Answers) + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    if std::env::var_os("LOOM_SHORT").is_some() {
        builder.preemption_bound = Some(1);
    }
    check(&builder, expected, model);
}

/// The same without a bound. For two threads, where there is no need of one.
pub fn exhaust(expected: &[&'static str], model: impl Fn(&Answers) + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = None;
    check(&builder, expected, model);
}

fn check(
    builder: &loom::model::Builder,
    expected: &[&'static str],
    model: impl Fn(&Answers) + Send + Sync + 'static,
) {
    let (answers, executions) = (Answers::default(), Arc::new(AtomicUsize::new(0)));
    let given = (answers.clone(), Arc::clone(&executions));
    builder.check(move || {
        executions.fetch_add(1, Relaxed);
        model(&answers);
    });
    given.0.check(expected, given.1.load(Relaxed));
}

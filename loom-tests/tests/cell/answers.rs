//! How a model is explored, and which answers it must have given in the end.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Which answers a model has given, over all its executions. Outside the model: it lives longer than an execution.
#[derive(Clone, Debug, Default)]
pub struct Answers(Arc<Mutex<BTreeMap<&'static str, u64>>>);

impl Answers {
    /// Notes that `answer` was given.
    pub fn note(&self, answer: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(answer).or_default() += 1;
    }
}

/// Explores `model` within the bound that the environment sets, and fails if one of `expected` was not answered in any
/// execution, or if something else was. For three threads and more.
///
/// Loom remembers only the last access of an object, and so may leave out executions that matter; a model in which an
/// answer never occurs has not asked its question.
pub fn explore(expected: &[&'static str], model: impl Fn(&Answers) + Send + Sync + 'static) {
    check(&loom::model::Builder::new(), expected, model);
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
    let (answers, executions) = (Answers::default(), Arc::new(AtomicU32::new(0)));
    let given = (answers.clone(), Arc::clone(&executions));
    builder.check(move || {
        executions.fetch_add(1, Relaxed);
        model(&answers);
    });
    let (answers, executions) = (given.0.0.lock().unwrap(), given.1.load(Relaxed));
    println!("{executions} executions: {answers:?}");
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(
        answers.keys().copied().collect::<Vec<_>>(),
        expected,
        "answers given, answers that must occur"
    );
}

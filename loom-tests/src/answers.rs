//! Which answers a model must have given in the end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Which answers a model has given, over all its executions. Outside the model: it lives longer than an execution.
#[derive(Clone, Debug, Default)]
pub struct Answers(Arc<Mutex<BTreeMap<&'static str, u64>>>);

impl Answers {
    /// Notes that `answer` was given.
    pub fn note(&self, answer: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(answer).or_default() += 1;
    }

    /// Prints what was answered, and fails if one of `expected` was not, or if something else was.
    pub(crate) fn check(&self, expected: &[&'static str], executions: usize) {
        let answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        println!("{executions} executions: {answers:?}");
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(
            answers.keys().copied().collect::<Vec<_>>(),
            expected,
            "answers given, answers that must occur"
        );
    }
}

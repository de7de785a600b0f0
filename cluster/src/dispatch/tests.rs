#[path = "tests/histories.rs"]
mod histories;

use super::*;

/// What was said, in order.
#[derive(Default)]
struct Said(Mutex<Vec<String>>);

impl Said {
    fn say(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }
}

impl Port for Said {
    fn order(&self, order: Order) {
        self.say(format!("{order:?}"));
    }

    fn stop(&self) {
        self.say("stop".into());
    }
}

#[test]
fn what_a_panic_has_left_is_sent_by_the_next_caller() {
    let said = Arc::new(Said::default());
    let dispatcher = Dispatcher::new(Arc::new(|event| assert!(!matches!(event, Event::Worker(_)))));
    let join = || dispatcher.join(WorkerId::new("worker", 1), 1, said.clone());
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(join)).is_err());
    assert!(said.0.lock().unwrap().is_empty());
    dispatcher.tell(Event::Available);
    assert_eq!(*said.0.lock().unwrap(), ["Begin"]);
}

#[test]
fn a_worker_is_told_of_before_it_is_told_anything() {
    let said = Arc::new(Said::default());
    let its = said.clone();
    let dispatcher = Dispatcher::new(Arc::new(move |event| {
        let Event::Worker(status) = event else { return };
        its.say(format!("{:?}", status.state));
    }));
    dispatcher.join(WorkerId::new("worker", 1), 1, said.clone());
    assert_eq!(*said.0.lock().unwrap(), ["Starting", "Begin"]);
}

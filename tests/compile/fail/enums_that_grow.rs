//! What may grow cannot be matched without a rest.
use forebear::{BuildError, CancelReason, StackError, State, WaitError};

fn wait(error: WaitError) {
    match error {
        //~^ E0004 non-exhaustive patterns
        WaitError::Cancelled => (),
    }
}

fn state(state: State) {
    match state {
        //~^ E0004 non-exhaustive patterns: `_` not covered
        State::New | State::Queued | State::Running | State::Suspended => (),
        State::Finished | State::Failed | State::Cancelled => (),
    }
}

fn others(reason: CancelReason, build: BuildError, stack: StackError) {
    match reason {
        //~^ E0004 non-exhaustive patterns
        CancelReason::Asked => (),
    }
    match build {
        //~^ E0004 non-exhaustive patterns: `_` not covered
        BuildError::Workers { .. } | BuildError::StackSize { .. } => (),
        BuildError::Start(_) | BuildError::DefaultBusy => (),
    }
    match stack {
        //~^ E0004 non-exhaustive patterns: `_` not covered
        StackError::Exhausted { .. } | StackError::TooLarge { .. } => (),
    }
}

fn main() {
    let _ = (wait, state, others);
}

//! Ctrl-C: the first asks the work to stop, the second ends the process.
//!
//! The signal is blocked in every thread, and one thread does nothing but wait for it. So what is done about it is
//! ordinary code on an ordinary thread; nothing runs in a signal handler. What that thread does depends on what the
//! program does at that moment, and on nothing else:
//!
//! | the program | at the first Ctrl-C |
//! |---|---|
//! | computes, in requests | cancels them; `main` says how far they came when they are over |
//! | makes or removes a file ([`Interrupts::undisturbed`]) | waits the moment that this takes, then as below |
//! | anything else: reads, encodes, prints | says how far it came, and exits: nothing is lying about |
//!
//! After that the signal is no longer blocked, so that the next one does what it does by nature, whatever hangs.

use std::io::{self, Write};
use std::mem;
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use forebear::prelude::*;
use forebear::{CancelReason, Error};

/// What shells make of a process that was ended by SIGINT: 128 + 2.
pub(crate) const EXIT_CODE: u8 = 130;

/// How far the program is, and whether it has been asked to stop. Its clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Interrupts(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Blocks that are done.
    done: AtomicUsize,
}

#[derive(Debug)]
struct State {
    now: Now,
    /// Since when, and how many blocks there are.
    began: Option<(Instant, usize)>,
    written: Written,
}

#[derive(Debug)]
enum Now {
    /// Something that may be left at any point.
    Else,
    /// What this request does, and those that it has made.
    Computes(AnyRequest),
    /// It was asked to stop.
    Stops,
}

/// What has come of the picture.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Written {
    Nothing,
    /// A device or a pipe has been given some of it.
    Part,
    All,
}

impl Interrupts {
    /// Listens from now on. To be called while the process has one thread.
    pub(crate) fn listen() -> io::Result<Interrupts> {
        let state = State { now: Now::Else, began: None, written: Written::Nothing };
        let interrupts = Interrupts(Arc::new(Shared { state: Mutex::new(state), done: AtomicUsize::new(0) }));
        if let Some(signal) = signal::block()? {
            let mine = interrupts.clone();
            thread::Builder::new().name("Ctrl-C".into()).spawn(move || {
                signal.wait();
                signal.unblock();
                mine.stop();
            })?;
        }
        Ok(interrupts)
    }

    /// From here on there are blocks to be done, so many of them.
    pub(crate) fn begin(&self, blocks: usize) {
        self.state().began = Some((Instant::now(), blocks));
    }

    /// One block is done.
    pub(crate) fn count_block(&self) {
        // Relaxed: a number to be shown.
        self.0.done.fetch_add(1, Relaxed);
    }

    /// Runs `f` as a request of `rt`, which Ctrl-C cancels. `None` if it did.
    pub(crate) fn compute<R: Send>(
        &self,
        rt: &Runtime,
        f: impl FnOnce() -> Result<R, Error> + Send,
    ) -> Result<Option<R>, WaitError> {
        let result = rt.try_run(|| {
            if let Some(this) = Request::current() {
                self.state().now = Now::Computes(this);
            }
            f()
        });
        let mut state = self.state();
        match (&state.now, result) {
            // Being asked to stop is no excuse for an error.
            (Now::Stops, result @ Err(WaitError::Failed(_))) => result.map(Some),
            // It may have finished in the same moment. The user has pressed Ctrl-C all the same.
            (Now::Stops, _) => Ok(None),
            (_, result) => {
                state.now = Now::Else;
                result.map(Some)
            }
        }
    }

    /// Makes and removes files: Ctrl-C waits for `f` to return. It must not take long.
    pub(crate) fn undisturbed<R>(&self, f: impl FnOnce(&mut Written) -> R) -> R {
        f(&mut self.state().written)
    }

    /// Says what was done and what was not.
    pub(crate) fn tell(&self) {
        self.tell_of(&self.state());
    }

    fn tell_of(&self, state: &State) {
        let done = self.0.done.load(Relaxed);
        let work = match state.began {
            None => "before the first block".into(),
            Some((began, blocks)) => format!("{done} of {blocks} blocks smoothed in {:.1?}", began.elapsed()),
        };
        let written = match state.written {
            Written::Nothing => "nothing written",
            Written::Part => "the output is incomplete",
            Written::All => "the picture is written",
        };
        // If nobody can be told, there is nobody to be told that.
        let _ = writeln!(io::stderr(), "interrupted: {work}, {written}");
    }

    /// The first Ctrl-C.
    fn stop(&self) {
        let mut state = self.state();
        match mem::replace(&mut state.now, Now::Stops) {
            Now::Computes(request) => {
                drop(state);
                // Not `cancel`, which would spare it: `main` waits for it.
                request.abort(CancelReason::Asked);
            }
            Now::Else | Now::Stops => {
                self.tell_of(&state);
                process::exit(EXIT_CODE.into());
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// SIGINT, taken by a thread instead of a handler.
#[cfg(unix)]
mod signal {
    use std::io;
    use std::mem::MaybeUninit;
    use std::ptr;

    /// The signal, blocked in the thread that made this and in all those that it has started since.
    #[derive(Clone, Copy)]
    pub(super) struct Blocked(libc::sigset_t);

    /// Blocks it, unless the process was started with the signal ignored, as a shell does for `&` in a script.
    pub(super) fn block() -> io::Result<Option<Blocked>> {
        let mut before = MaybeUninit::<libc::sigaction>::uninit();
        let mut set = MaybeUninit::uninit();
        // SAFETY: the pointers are valid for the calls. `sigaction` only looks, since it is given nothing to set. Both
        // objects are read only after the call that fills them in has succeeded.
        let (ignored, set) = unsafe {
            check(libc::sigaction(libc::SIGINT, ptr::null(), before.as_mut_ptr()))?;
            check(libc::sigemptyset(set.as_mut_ptr()))?;
            check(libc::sigaddset(set.as_mut_ptr(), libc::SIGINT))?;
            (before.assume_init().sa_sigaction == libc::SIG_IGN, set.assume_init())
        };
        if ignored {
            return Ok(None);
        }
        let blocked = Blocked(set);
        blocked.mask(libc::SIG_BLOCK)?;
        Ok(Some(blocked))
    }

    impl Blocked {
        /// Blocks the calling thread until the signal comes.
        pub(super) fn wait(&self) {
            let mut signal = 0;
            // SAFETY: the set is whole, and the number has a place to go.
            while unsafe { libc::sigwait(&self.0, &mut signal) } != 0 {}
        }

        /// Lets the signal through to the calling thread, and so to the process.
        pub(super) fn unblock(&self) {
            // It fails only for a wrong `how`.
            let _ = self.mask(libc::SIG_UNBLOCK);
        }

        fn mask(&self, how: libc::c_int) -> io::Result<()> {
            // SAFETY: the set is whole, and nobody wants to know the mask before.
            match unsafe { libc::pthread_sigmask(how, &self.0, ptr::null_mut()) } {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    fn check(answer: libc::c_int) -> io::Result<()> {
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Elsewhere Ctrl-C ends the process, as it does every other.
#[cfg(not(unix))]
mod signal {
    pub(super) struct Blocked;

    pub(super) fn block() -> std::io::Result<Option<Blocked>> {
        Ok(None)
    }

    impl Blocked {
        pub(super) fn wait(&self) {}
        pub(super) fn unblock(&self) {}
    }
}

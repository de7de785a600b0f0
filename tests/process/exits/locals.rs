//! A thread exits, and the destructors of its own thread-locals use a runtime that the thread drives.
//!
//! Thread-locals go in the opposite order of their first use.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use forebear::sync::Event;
use forebear::{CancelReason, Request, Runtime, State, WaitError, spawn, yield_now};

use crate::child;

/// What is suspended inside [`KEY`] holds a reference to this.
struct Key(Vec<String>);

impl Drop for Key {
    fn drop(&mut self) {
        KEY_IS_GONE.set(true);
        self.0.iter_mut().for_each(|text| text.replace_range(.., "goner"));
    }
}

thread_local! {
    static KEY: Key = Key(vec!["a value".to_owned()]);
    /// Has no destructor.
    static KEY_IS_GONE: Cell<bool> = const { Cell::new(false) };
    static LATE: RefCell<Late> = const { RefCell::new(Late(None)) };
    static LATER: RefCell<Late> = const { RefCell::new(Late(None)) };
}

/// Calls its closure when its thread exits; what that refuses is a panic.
struct Late(Option<Box<dyn FnOnce()>>);

impl Drop for Late {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            let _ = catch_unwind(AssertUnwindSafe(call));
        }
    }
}

/// What the test's threads share.
#[derive(Clone)]
struct World {
    runtime: Runtime,
    go: Arc<Event>,
    /// How often a frame has gone on inside [`KEY`] when that was destroyed.
    gone_on: Arc<AtomicUsize>,
}

impl World {
    fn new(kind: &str) -> World {
        let builder = match kind {
            "seeded" => Runtime::builder().seeded(3),
            "one worker" => Runtime::builder().workers(1),
            _ => Runtime::builder().workers(0),
        };
        World {
            runtime: builder.on_warning(|_| ()).build().unwrap(),
            go: Arc::new(Event::new()),
            gone_on: Arc::default(),
        }
    }

    /// A request that is suspended inside [`KEY`].
    fn suspend(&self) -> Request<()> {
        let begun = Arc::new(Event::new());
        let request = {
            let (world, begun) = (self.clone(), begun.clone());
            self.runtime.spawn(move || {
                KEY.with(|key| {
                    begun.set();
                    _ = world.go.wait();
                    world.note(key);
                });
            })
        };
        self.runtime.enter(|| begun.wait().unwrap());
        assert_eq!(request.state(), State::Suspended);
        request
    }

    /// A frame goes on inside [`KEY`].
    fn note(&self, key: &Key) {
        if KEY_IS_GONE.get() {
            self.gone_on.fetch_add(1, Ordering::Relaxed);
        } else {
            assert_eq!(key.0[0], "a value");
        }
    }

    /// More frames are suspended on this thread than what can be remembered of each.
    fn suspend_often(&self) {
        let request = || (0..5_000).for_each(|_| yield_now().unwrap());
        let both = [self.runtime.spawn(request), self.runtime.spawn(request)];
        both.iter().for_each(|request| _ = request.wait().unwrap());
    }

    fn assert_has_ended_in_time(&self, request: &Request<()>) {
        assert_eq!(self.gone_on.load(Ordering::Relaxed), 0, "a frame has gone on too late");
        assert!(matches!(request.wait(), Err(WaitError::TargetCancelled(CancelReason::ThreadExited))));
    }
}

/// Each lets a thread that drives run what is ready.
type Drive = (&'static str, fn(World));

const DRIVES: [Drive; 6] = [
    ("wait", |world| assert_eq!(world.runtime.spawn(|| 7).wait().ok(), Some(&7))),
    ("event", |world| {
        let event = Arc::new(Event::new());
        let set = event.clone();
        let _set = world.runtime.spawn(move || set.set());
        world.runtime.enter(|| event.wait().unwrap());
    }),
    ("yield", |world| world.runtime.enter(|| _ = yield_now())),
    ("run", |world| world.runtime.run(|| spawn(|| yield_now().unwrap()).take().unwrap())),
    ("finish", |world| _ = world.runtime.finish(Duration::ZERO)),
    ("drop", |world| drop(world)),
];

fn drives(name: &str) -> fn(World) {
    DRIVES.iter().find(|(of, _)| *of == name).unwrap().1
}

const KINDS: [&str; 2] = ["synchronous", "seeded"];

/// In the order of their first use: the runtime, the thread-local whose destructor drives, and the one that a frame is suspended in.
const ORDERS: [&str; 3] = ["runtime local key", "local runtime key", "runtime key local"];

#[test]
fn a_frame_suspended_inside_a_thread_local_never_goes_on_by_the_destructor_of_another() {
    for kind in KINDS {
        for order in ORDERS {
            for (how, _) in DRIVES {
                let end = child::run(&format!("{kind},{order},{how}"), &[], |given| {
                    let [kind, order, how] = given.split(',').collect::<Vec<_>>().try_into().unwrap();
                    let world = World::new(kind);
                    let theirs = world.clone();
                    let (steps, how) = (order.to_owned(), drives(how));
                    let request = thread::spawn(move || {
                        let mut request = None;
                        for step in steps.split(' ') {
                            let world = theirs.clone();
                            match step {
                                "runtime" => world.runtime.run(|| ()),
                                "local" => LATE.set(Late(Some(Box::new(move || {
                                    world.go.set();
                                    how(world);
                                })))),
                                _ => request = Some(world.suspend()),
                            }
                        }
                        request.unwrap()
                    })
                    .join()
                    .unwrap();
                    if order.ends_with("local") {
                        // That destructor drives, or the exit does: the thread-local is there until after both.
                        assert_eq!(world.gone_on.load(Ordering::Relaxed), 0);
                        assert!(request.is_done());
                    } else {
                        world.go.set();
                        world.assert_has_ended_in_time(&request);
                    }
                });
                end.assert_survived();
            }
        }
    }
}

/// One destructor begins a request, which is suspended inside a thread-local; that goes next, and then the other destructor drives.
#[test]
fn what_a_destructor_of_a_thread_local_has_begun_never_goes_on_by_the_next() {
    for kind in KINDS {
        for (how, _) in DRIVES {
            let end = child::run(&format!("{kind},{how}"), &[], |given| {
                let (kind, how) = given.split_once(',').unwrap();
                let world = World::new(kind);
                let theirs = world.clone();
                let how = drives(how);
                let (tell, told) = std::sync::mpsc::channel();
                thread::spawn(move || {
                    theirs.runtime.run(|| ());
                    let world = theirs.clone();
                    LATE.set(Late(Some(Box::new(move || {
                        assert!(KEY_IS_GONE.get(), "the order is another");
                        world.go.set();
                        how(world);
                    }))));
                    KEY.with(|_| ());
                    LATER.set(Late(Some(Box::new(move || {
                        assert!(!KEY_IS_GONE.get());
                        tell.send(theirs.suspend()).unwrap();
                    }))));
                })
                .join()
                .unwrap();
                world.assert_has_ended_in_time(&told.recv().unwrap());
            });
            end.assert_survived();
        }
    }
}

#[test]
fn a_destructor_of_a_thread_local_may_drive_what_it_begins() {
    for kind in KINDS {
        let end = child::run(kind, &[], |kind| {
            let world = World::new(kind);
            let theirs = world.clone();
            let (tell, told) = std::sync::mpsc::channel();
            thread::spawn(move || {
                theirs.runtime.run(|| ());
                LATE.set(Late(Some(Box::new(move || {
                    let sum = theirs.runtime.run(|| {
                        let parts: Vec<_> =
                            (0..10).map(|n| spawn(move || (yield_now().unwrap(), n).1)).collect();
                        parts.iter().map(|part| *part.wait().unwrap()).sum::<u32>()
                    });
                    tell.send(sum).unwrap();
                    // It may run right here.
                    let direct = theirs
                        .runtime
                        .enter(|| Request::new(|| spawn(|| (yield_now().unwrap(), 7).1).take().unwrap()));
                    tell.send(direct.take().unwrap()).unwrap();
                    let go = Arc::new(Event::new());
                    let waits = {
                        let go = go.clone();
                        theirs.runtime.spawn(move || (go.wait().unwrap(), 8).1)
                    };
                    go.set();
                    tell.send(waits.take().unwrap()).unwrap();
                }))));
            })
            .join()
            .unwrap();
            assert_eq!(told.iter().collect::<Vec<_>>(), [45, 7, 8]);
            assert_eq!(world.runtime.run(|| 7), 7);
        });
        end.assert_survived();
    }
}

/// The exit comes from inside a request, in the middle of a wait of the thread that drives it.
#[test]
fn no_frame_goes_on_by_the_destructor_of_a_thread_local_when_a_request_ends_the_process() {
    for kind in KINDS {
        for (how, _) in DRIVES {
            let end = child::run(&format!("{kind},{how}"), &[], |given| {
                let (kind, how) = given.split_once(',').unwrap();
                let world = World::new(kind);
                let how = drives(how);
                world.runtime.run(|| ());
                let theirs = world.clone();
                LATE.set(Late(Some(Box::new(move || {
                    theirs.go.set();
                    let gone_on = theirs.gone_on.clone();
                    how(theirs);
                    assert_eq!(gone_on.load(Ordering::Relaxed), 0);
                    println!("survived");
                }))));
                let _request = world.suspend();
                world.runtime.run(|| std::process::exit(0));
            });
            end.assert_survived();
        }
    }
}

/// A thread has suspended so many frames, and then uses for the first time the thread-local whose destructor drives, and the one that a frame is
/// suspended in.
#[test]
fn a_frame_never_goes_on_by_the_destructor_of_another_however_many_were_suspended_before() {
    for kind in KINDS {
        for inside in ["outside", "inside"] {
            for (how, _) in DRIVES {
                let end = child::run(&format!("{kind},{inside},{how}"), &[], |given| {
                    let [kind, inside, how] = given.split(',').collect::<Vec<_>>().try_into().unwrap();
                    let (inside, how) = (inside == "inside", drives(how));
                    let world = World::new(kind);
                    let theirs = world.clone();
                    let request = thread::spawn(move || {
                        theirs.suspend_often();
                        let late = theirs.clone();
                        let begin = || {
                            LATE.set(Late(Some(Box::new(move || {
                                late.go.set();
                                how(late);
                            }))));
                            theirs.suspend()
                        };
                        if inside { theirs.runtime.run(begin) } else { begin() }
                    })
                    .join()
                    .unwrap();
                    world.go.set();
                    world.assert_has_ended_in_time(&request);
                });
                end.assert_survived();
            }
        }
    }
}

/// The exit comes from inside a request, after as many suspensions.
#[test]
fn no_frame_goes_on_when_a_request_ends_the_process_however_many_were_suspended_before() {
    for kind in KINDS {
        let end = child::run(kind, &[], |kind| {
            let world = World::new(kind);
            world.clone().runtime.run(move || {
                world.suspend_often();
                let late = world.clone();
                LATE.set(Late(Some(Box::new(move || {
                    assert!(KEY_IS_GONE.get(), "the order is another");
                    late.go.set();
                    let gone_on = late.gone_on.clone();
                    drives("yield")(late);
                    assert_eq!(gone_on.load(Ordering::Relaxed), 0);
                    println!("survived");
                }))));
                let _suspended = world.suspend();
                std::process::exit(0);
            });
        });
        end.assert_survived();
    }
}

/// The thread's own frame waits inside a thread-local, nothing is suspended, and what the thread runs meanwhile ends the process.
#[test]
fn a_thread_that_drives_never_goes_on_by_the_destructor_of_a_thread_local_when_a_request_ends_the_process() {
    for kind in KINDS {
        let end = child::run(kind, &[], |kind| {
            let world = World::new(kind);
            world.runtime.run(|| ());
            let late = world.clone();
            LATE.set(Late(Some(Box::new(move || {
                assert!(KEY_IS_GONE.get(), "the order is another");
                late.go.set();
                drives("yield")(late);
                println!("survived");
            }))));
            KEY.with(|key| {
                // Runs inside this call.
                let _ends = world.runtime.spawn(|| std::process::exit(0));
                world.runtime.enter(|| _ = world.go.wait());
                println!("the thread goes on with {}", key.0[0]);
            });
        });
        end.assert_survived();
    }
}

/// A request of a worker ends the process while another is suspended inside a thread-local of that worker.
#[test]
fn no_frame_of_a_worker_goes_on_by_the_destructor_of_a_thread_local_when_a_request_ends_the_process() {
    for often in ["seldom", "often"] {
        for how in ["wait", "event", "yield"] {
            let end = child::run(&format!("{often},{how}"), &[], |given| {
                let (often, how) = given.split_once(',').unwrap();
                let (often, how) = (often == "often", drives(how));
                let world = World::new("one worker");
                let theirs = world.clone();
                let _ends = world.runtime.spawn(move || {
                    if often {
                        theirs.suspend_often();
                    }
                    let late = theirs.clone();
                    LATE.set(Late(Some(Box::new(move || {
                        assert!(KEY_IS_GONE.get(), "the order is another");
                        late.go.set();
                        let gone_on = late.gone_on.clone();
                        if let Err(refused) = catch_unwind(AssertUnwindSafe(|| how(late))) {
                            let message = refused.downcast_ref::<String>().expect("a message");
                            assert!(
                                message.contains("inside the region 'the end of the process'"),
                                "{message}"
                            );
                        }
                        assert_eq!(gone_on.load(Ordering::Relaxed), 0);
                        println!("survived");
                    }))));
                    let _suspended = theirs.suspend();
                    std::process::exit(0);
                });
                // A wait for it might run it on this thread.
                loop {
                    thread::park();
                }
            });
            end.assert_survived();
        }
    }
}

/// Both thread-locals are used for the first time by the frame itself, just before it is suspended on the shortest way.
#[test]
fn no_frame_of_a_worker_goes_on_when_a_request_ends_the_process_right_after_its_suspension() {
    for way in ["park", "yield"] {
        let end = child::run(way, &[], |way| {
            let yields = way == "yield";
            let world = World::new("one worker");
            let theirs = world.clone();
            let _ends = world.runtime.spawn(move || {
                let [starts, may_go_on, begun] = [(); 3].map(|()| Arc::new(Event::new()));
                let frame = {
                    let (world, starts, may_go_on, begun) =
                        (theirs.clone(), starts.clone(), may_go_on.clone(), begun.clone());
                    move || {
                        // The first suspension of a request never takes the shortest way.
                        starts.set();
                        may_go_on.wait().unwrap();
                        begun.set();
                        let late = world.clone();
                        LATE.set(Late(Some(Box::new(move || {
                            assert!(KEY_IS_GONE.get(), "the order is another");
                            late.go.set();
                            let gone_on = late.gone_on.clone();
                            let refused = catch_unwind(AssertUnwindSafe(|| drives("yield")(late)));
                            assert_eq!(gone_on.load(Ordering::Relaxed), 0, "a frame has gone on");
                            assert!(refused.is_err());
                            println!("survived");
                        }))));
                        KEY.with(|key| {
                            _ = if yields { yield_now() } else { world.go.wait() };
                            world.note(key);
                        });
                    }
                };
                let _suspended = theirs.runtime.spawn(frame);
                starts.wait().unwrap();
                may_go_on.set();
                while yields && !begun.is_set() {
                    yield_now().unwrap();
                }
                begun.wait().unwrap();
                std::process::exit(0);
            });
            // A wait for it might run it on this thread.
            loop {
                thread::park();
            }
        });
        end.assert_survived();
    }
}

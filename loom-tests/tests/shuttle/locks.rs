//! Locks, permits, conditions and channels between requests on two workers and foreign threads, half of whom leave.

use std::sync::Arc;
use std::time::Duration;

use forebear_loom_tests::roam;
use forebear_runtime::{Request, Runtime};
use forebear_sync::channel::{RecvError, RecvTimeoutError, bounded};
use forebear_sync::{Condvar, Event, Mutex, RwLock, Semaphore, select};

use crate::support::{Count, draw, finish, pause, runtime, thread};

const SHORT: Duration = Duration::from_micros(60);

/// Cancels every second of them, at some time.
fn cancel_some<T>(requests: &[Request<T>]) {
    for request in requests.iter().step_by(2) {
        pause(40);
        request.cancel();
    }
}

fn over<T>(runtime: &Runtime, requests: &[Request<T>]) {
    for request in requests {
        let _ = request.watch();
    }
    finish(runtime);
}

/// Four requests, two of them cancelled, and two threads, one of which waits for a while only.
#[test]
fn a_lock_is_had_by_one_at_a_time_and_free_in_the_end() {
    roam(3, &["everybody", "not everybody"], |answers| {
        let runtime = runtime(2);
        let (lock, inside, had) = (Arc::new(Mutex::new(0)), Count::default(), Count::default());
        let work = {
            let (inside, had) = (inside.clone(), had.clone());
            move |count: &mut u32| {
                inside.up();
                pause(20);
                *count += 1;
                had.up();
                inside.down();
            }
        };
        let requests: Vec<_> = (0..4)
            .map(|_| {
                let (lock, work) = (lock.clone(), work.clone());
                runtime.spawn(move || lock.lock_or_cancelled().map(|mut held| work(&mut held)))
            })
            .collect();
        let threads = [true, false].map(|timed| {
            let (lock, work) = (lock.clone(), work.clone());
            thread(move || match timed {
                true => lock.lock_timeout(SHORT).map(|mut held| work(&mut held)).is_ok(),
                false => {
                    work(&mut lock.lock());
                    true
                }
            })
        });
        cancel_some(&requests);
        for thread in threads {
            thread.join().unwrap();
        }
        over(&runtime, &requests);
        assert_eq!(inside.most(), 1);
        let count = lock.try_lock().expect("it is free");
        assert_eq!(*count as usize, had.get());
        answers.note(if had.get() == 6 { "everybody" } else { "not everybody" });
    });
}

/// Two permits; one request in three wants both.
#[test]
fn permits_are_never_too_many_and_all_there_in_the_end() {
    roam(3, &["everybody", "not everybody"], |answers| {
        let runtime = runtime(2);
        let (permits, inside, had) = (Arc::new(Semaphore::new(2)), Count::default(), Count::default());
        let work = {
            let (inside, had) = (inside.clone(), had.clone());
            move |n: usize| {
                (0..n).for_each(|_| _ = inside.up());
                pause(20);
                had.up();
                (0..n).for_each(|_| inside.down());
            }
        };
        let requests: Vec<_> = (0..5)
            .map(|n| {
                let (permits, work) = (permits.clone(), work.clone());
                let wants = 1 + usize::from(n % 3 == 0);
                runtime.spawn(move || permits.acquire_many(wants).map(|_held| work(wants)))
            })
            .collect();
        let timed = {
            let (permits, work) = (permits.clone(), work.clone());
            thread(move || permits.acquire_timeout(SHORT).map(|_held| work(1)).is_ok())
        };
        cancel_some(&requests);
        timed.join().unwrap();
        over(&runtime, &requests);
        assert!(inside.most() <= 2);
        assert_eq!(permits.available(), 2);
        answers.note(if had.get() == 6 { "everybody" } else { "not everybody" });
    });
}

/// Items in a list under a lock, one notification each; consumers of whom half are cancelled.
#[test]
fn no_notification_is_lost_on_a_waiter_that_leaves() {
    roam(3, &["by a thread", "by requests alone"], |answers| {
        let runtime = runtime(2);
        let (items, news) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Condvar::new()));
        let taken = Count::default();
        let consume = {
            let (items, news, taken) = (items.clone(), news.clone(), taken.clone());
            move || {
                let mut items = items.lock();
                while items.is_empty() {
                    news.wait(&mut items)?;
                }
                items.pop();
                taken.up();
                Ok::<_, forebear_runtime::Cancelled>(())
            }
        };
        let requests: Vec<_> = (0..4).map(|_| runtime.spawn(consume.clone())).collect();
        let before = taken.clone();
        let outside = {
            let consume = consume.clone();
            thread(move || consume().is_ok() && before.get() < 5)
        };
        let canceller = {
            let requests = requests.clone();
            thread(move || cancel_some(&requests))
        };
        // One for each who stays: as many as there are, if all who are cancelled have had theirs.
        for n in 0..5 {
            pause(20);
            items.lock().push(n);
            news.notify_one();
        }
        let by_thread = outside.join().unwrap();
        canceller.join().unwrap();
        over(&runtime, &requests);
        assert_eq!(taken.get() + items.lock().len(), 5);
        answers.note(if by_thread && taken.get() < 5 { "by a thread" } else { "by requests alone" });
    });
}

/// Three that send, one of them cancelled; three that receive, one of them for a while only and one cancelled.
#[test]
fn what_is_sent_is_received_once_or_comes_back() {
    roam(3, &["all", "some came back"], |answers| {
        let runtime = runtime(2);
        let (sender, receiver) = bounded(draw(2));
        let (received, back) = (Count::default(), Count::default());
        let senders: Vec<_> = (0..3)
            .map(|n| {
                let (sender, back) = (sender.clone(), back.clone());
                runtime.spawn(move || {
                    for item in 0..2 {
                        pause(10);
                        if sender.send((n, item)).is_err() {
                            back.up();
                        }
                    }
                })
            })
            .collect();
        drop(sender);
        let receivers: Vec<_> = (0..2)
            .map(|_| {
                let (receiver, received) = (receiver.clone(), received.clone());
                runtime.spawn(move || {
                    loop {
                        match receiver.recv() {
                            Ok(_) => _ = received.up(),
                            Err(RecvError::Disconnected | RecvError::Cancelled) => return,
                        }
                    }
                })
            })
            .collect();
        let outside = {
            let received = received.clone();
            thread(move || {
                loop {
                    match receiver.recv_timeout(SHORT) {
                        Ok(_) => _ = received.up(),
                        Err(RecvTimeoutError::TimedOut) => {}
                        Err(_) => return,
                    }
                }
            })
        };
        pause(40);
        senders[0].cancel();
        receivers[0].cancel();
        outside.join().unwrap();
        over(&runtime, &receivers);
        let never_sent = 6 - received.get() - back.get();
        assert!(never_sent == 0 || senders[0].wait().is_err() && never_sent <= 2, "{never_sent}");
        answers.note(if received.get() == 6 { "all" } else { "some came back" });
    });
}

/// Two channels and the word to stop; two requests select over all three, one of them cancelled, and a thread receives from one.
#[test]
fn what_several_select_from_is_had_once_by_one() {
    roam(3, &["by the thread, too", "by selects alone"], |answers| {
        let runtime = runtime(2);
        let (left, right, stop) = (bounded(1), bounded(0), Arc::new(Event::new()));
        let (had, back) = (Count::default(), Count::default());
        let producers = [&left.0, &right.0].map(|sender| {
            let (sender, back) = (sender.clone(), back.clone());
            runtime.spawn(move || {
                for item in 0..2 {
                    pause(10);
                    if sender.send(item).is_err() {
                        back.up();
                    }
                }
            })
        });
        let selects: Vec<_> = (0..2)
            .map(|_| {
                let (left, right, stop, had) = (left.1.clone(), right.1.clone(), stop.clone(), had.clone());
                runtime.spawn(move || {
                    loop {
                        select! {
                            item = &left => if item.is_err() { return } else { had.up(); },
                            item = &right => if item.is_err() { return } else { had.up(); },
                            _ = &*stop => return,
                        }
                    }
                })
            })
            .collect();
        let outside = {
            let receiver = left.1.clone();
            thread(move || receiver.recv_timeout(SHORT).is_ok())
        };
        let senders = (left.0, right.0);
        drop((left.1, right.1));
        pause(40);
        selects[0].cancel();
        let by_thread = outside.join().unwrap();
        // Half of the time nothing else ends what the select that is left waits for: neither the word to stop nor the end
        // of a channel. So it has to see every item, or the producers stay.
        if draw(2) == 0 {
            for producer in &producers {
                let _ = producer.watch();
            }
        }
        drop(senders);
        // What nobody takes any more comes back when the last that could has gone.
        let stopper = {
            let stop = stop.clone();
            thread(move || {
                pause(200);
                stop.set();
            })
        };
        over(&runtime, &selects);
        stopper.join().unwrap();
        for producer in &producers {
            let _ = producer.watch();
        }
        let total = had.get() + usize::from(by_thread) + back.get();
        // One item may lie in the channel of capacity 1 when the last receiver goes.
        assert!(total == 4 || total == 3, "{total}");
        answers.note(if by_thread { "by the thread, too" } else { "by selects alone" });
    });
}

/// Readers and writers of both kinds, half of whom leave.
#[test]
fn readers_share_and_writers_are_alone() {
    roam(3, &["together", "one by one"], |answers| {
        let runtime = runtime(2);
        let (lock, readers, writers) = (Arc::new(RwLock::new(0)), Count::default(), Count::default());
        let read = {
            let (readers, writers) = (readers.clone(), writers.clone());
            move |_: &u32| {
                readers.up();
                assert_eq!(writers.get(), 0);
                pause(400);
                readers.down();
            }
        };
        let write = {
            let (readers, writers) = (readers.clone(), writers.clone());
            move |value: &mut u32| {
                assert_eq!((writers.up(), readers.get()), (1, 0));
                pause(20);
                *value += 1;
                writers.down();
            }
        };
        let requests: Vec<_> = (0..4)
            .map(|n| {
                let (lock, read, write) = (lock.clone(), read.clone(), write.clone());
                runtime.spawn(move || match n % 2 {
                    0 => lock.read_or_cancelled().map(|held| read(&held)),
                    _ => lock.write_or_cancelled().map(|mut held| write(&mut held)),
                })
            })
            .collect();
        let threads = [true, false].map(|reads| {
            let (lock, read, write) = (lock.clone(), read.clone(), write.clone());
            thread(move || match reads {
                true => read(&lock.read()),
                false => _ = lock.write_timeout(SHORT).map(|mut held| write(&mut held)),
            })
        });
        cancel_some(&requests);
        for thread in threads {
            thread.join().unwrap();
        }
        over(&runtime, &requests);
        assert!(lock.try_write().is_some(), "it is free");
        answers.note(if readers.most() > 1 { "together" } else { "one by one" });
    });
}

//! Locks, permits, conditions and channels between requests on two workers and foreign threads, half of whom leave.

use std::sync::Arc;
use std::time::Duration;

use forebear_loom_tests::roam;
use forebear_runtime::{Request, Runtime};
use forebear_sync::channel::{RecvError, RecvTimeoutError, bounded};
use forebear_sync::{Condvar, Mutex, Semaphore};

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

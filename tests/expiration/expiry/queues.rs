//! What a server reads: how many, for how long, in which order.

use super::*;

use std::sync::mpsc;
use std::thread;

fn request(n: u32) -> TimerRequest<u32> {
    TimerRequest::release(n, "scope")
}

fn numbers(requests: Vec<TimerRequest<u32>>) -> Vec<u32> {
    requests.into_iter().map(|request| request.worker).collect()
}

#[test]
fn t19_a_get_takes_up_to_n_in_order_and_waits_for_no_more_than_that() {
    let _dog = support::Watchdog::new("");
    let (timers, mut queue) = channel();
    for n in 0..5 {
        timers.send(request(n)).unwrap();
    }
    assert_eq!(numbers(queue.get(3, Duration::MAX).unwrap()), [0, 1, 2]);
    assert_eq!(numbers(queue.get(0, Duration::MAX).unwrap()), [0; 0]);
    assert_eq!(numbers(queue.get(9, Duration::ZERO).unwrap()), [3, 4], "what is there");
    assert_eq!(numbers(queue.get(9, Duration::ZERO).unwrap()), [0; 0]);

    // Of a slow producer it gets all that it asked for, if it has the time.
    let (next, go_on) = mpsc::channel();
    let producer = thread::spawn(move || {
        for n in 0..4 {
            timers.send(request(n)).unwrap();
            if n == 1 {
                go_on.recv().unwrap();
            }
        }
    });
    assert_eq!(numbers(queue.get(2, Duration::MAX).unwrap()), [0, 1]);
    next.send(()).unwrap();
    assert_eq!(numbers(queue.get(2, Duration::MAX).unwrap()), [2, 3]);
    producer.join().unwrap();
}

#[test]
fn t19_a_get_gives_what_is_there_when_its_time_is_up_and_not_before() {
    let _dog = support::Watchdog::new("");
    let (timers, mut queue) = channel();
    timers.send(request(1)).unwrap();
    let (before, time) = (Instant::now(), Duration::from_millis(2));
    assert_eq!(numbers(queue.get(2, time).unwrap()), [1]);
    assert!(before.elapsed() >= time);
}

#[test]
fn t20_the_size_is_what_was_sent_and_shrinks_by_a_get_alone() {
    let (timers, mut queue) = channel();
    assert_eq!(queue.size(), 0);
    for n in 1..=4 {
        timers.send(request(n)).unwrap();
        assert_eq!(queue.size(), n as usize);
    }
    queue.waker().unwrap().wake();
    assert_eq!(queue.size(), 4);
    queue.get(3, Duration::ZERO).unwrap();
    assert_eq!(queue.size(), 1);
    drop(timers);
    assert_eq!(queue.size(), 1, "also when nobody is left who could send");
}

#[test]
fn a_wake_up_ends_the_get_that_waits_or_the_next_that_would() {
    let _dog = support::Watchdog::new("");
    let (timers, mut queue) = channel();
    let waker = queue.waker().unwrap();
    waker.wake_by_ref();
    timers.send(request(1)).unwrap();
    assert_eq!(numbers(queue.get(1, Duration::MAX).unwrap()), [1], "that one does not wait");
    assert_eq!(numbers(queue.get(1, Duration::ZERO).unwrap()), [0; 0], "nor does that");
    assert_eq!(numbers(queue.get(1, Duration::MAX).unwrap()), [0; 0], "that would");
    let waiting = thread::spawn(move || {
        let got = queue.get(2, Duration::MAX).unwrap();
        (numbers(got), queue.size())
    });
    timers.send(request(2)).unwrap();
    waker.wake();
    assert_eq!(waiting.join().unwrap(), (vec![2], 0), "with what is there");
}

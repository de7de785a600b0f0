//! The cases of std's tests of its channel of one item, in our words: `docs/foreign-suites.md` says which is where. Each is run by
//! threads and by requests.

#[path = "../support/mod.rs"]
mod support;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use forebear::channel::oneshot::{self, Receiver, Sender};
use forebear::channel::{RecvError, RecvTimeoutError, TryRecvError};
use forebear::{Runtime, spawn};
use support::{Joined, in_both_worlds, on_each};

const SHORT: Duration = Duration::from_millis(1);

/// Has the two ends used at the same time, by threads and by requests.
fn at_once(
    send: impl FnOnce(Sender<u128>) + Copy + Send + 'static,
    receive: impl FnOnce(Receiver<u128>) + Copy + Send + 'static,
) {
    on_each(|runtime: &Runtime| {
        let (sender, receiver) = oneshot::channel();
        let other = std::thread::spawn(move || send(sender));
        receive(receiver);
        other.joined().unwrap();
        runtime.run(move || {
            let (sender, receiver) = oneshot::channel();
            let other = spawn(move || send(sender));
            receive(receiver);
            other.take().unwrap();
        });
    });
}

#[test]
fn what_was_sent_before_is_there_in_every_way_to_receive() {
    in_both_worlds(|| {
        let (sender, receiver) = oneshot::channel();
        assert!(!receiver.is_ready());
        sender.send(String::from("hello")).unwrap();
        assert!(receiver.is_ready());
        assert_eq!(receiver.try_recv().as_deref(), Ok("hello"));
        let (sender, receiver) = oneshot::channel();
        sender.send(()).unwrap();
        assert_eq!(receiver.recv(), Ok(()));
        let (sender, receiver) = oneshot::channel();
        sender.send([0b1010_1010_u8; 4096]).unwrap();
        assert!(receiver.recv().unwrap() == [0b1010_1010; 4096]);
        let (sender, receiver) = oneshot::channel();
        sender.send(22_i128).unwrap();
        assert_eq!(receiver.recv_timeout(Duration::from_secs(1)), Ok(22));
    });
}

#[test]
fn a_sender_that_is_dropped_is_told_in_every_way_to_receive() {
    in_both_worlds(|| {
        let gone = || {
            let (sender, receiver) = oneshot::channel::<u128>();
            drop(sender);
            receiver
        };
        assert!(!gone().is_ready());
        assert_eq!(gone().try_recv(), Err(TryRecvError::Disconnected));
        assert_eq!(gone().recv_timeout(Duration::from_secs(1)), Err(RecvTimeoutError::Disconnected));
        assert_eq!(gone().recv_timeout(Duration::ZERO), Err(RecvTimeoutError::Disconnected));
        assert_eq!(gone().recv(), Err(RecvError::Disconnected));
    });
}

#[test]
fn nothing_is_there_as_long_as_nobody_sends() {
    in_both_worlds(|| {
        let (sender, receiver) = oneshot::channel::<u128>();
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        assert_eq!(receiver.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::TimedOut));
        assert_eq!(receiver.recv_timeout(SHORT), Err(RecvTimeoutError::TimedOut));
        sender.send(9).unwrap();
        assert_eq!(receiver.recv(), Ok(9));
    });
}

#[test]
fn the_ends_are_used_at_the_same_time() {
    at_once(|sender| sender.send(9).unwrap(), |receiver| assert_eq!(receiver.recv(), Ok(9)));
    at_once(drop, |receiver| assert_eq!(receiver.recv(), Err(RecvError::Disconnected)));
    at_once(
        |sender| sender.send(99).unwrap(),
        |receiver| assert_eq!(receiver.recv_timeout(Duration::from_secs(3600)), Ok(99)),
    );
    // It may be there, or not yet; then it comes back to the sender.
    at_once(|sender| _ = sender.send(42), |receiver| _ = receiver.try_recv());
}

#[test]
fn an_item_that_nobody_receives_is_dropped_once_and_comes_back_if_it_was_not_sent() {
    struct Counted(Rc<Cell<u32>>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    in_both_worlds(|| {
        let dropped = Rc::<Cell<u32>>::default();
        let (sender, receiver) = oneshot::channel();
        assert!(sender.send(Counted(dropped.clone())).is_ok());
        assert_eq!(dropped.get(), 0);
        drop(receiver);
        assert_eq!(dropped.get(), 1);
        let (sender, receiver) = oneshot::channel();
        drop(receiver);
        let Err(back) = sender.send(Counted(dropped.clone())) else { panic!("nobody receives") };
        assert_eq!(dropped.get(), 1);
        drop(back);
        assert_eq!(dropped.get(), 2);
    });
}

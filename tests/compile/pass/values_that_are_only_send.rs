//! A value that is only `Send`, a callable that is only `FnOnce + Send`: enough.
use forebear::{Request, WaitError, join, spawn};
use std::cell::Cell;
use std::sync::mpsc;

fn main() -> Result<(), WaitError> {
    let cell = Cell::new(1);
    let request = Request::new(move || cell);
    request.wait()?.set(2);
    let other = request.clone();
    other.wait()?.set(3);
    drop(other);
    assert_eq!(request.take()?.get(), 3);

    let (sender, receiver) = mpsc::channel();
    spawn(move || sender.send(1).is_ok()).wait()?;
    let receiver = spawn(move || receiver).take()?;
    let (_, receiver) = join(|| (), move || receiver);
    assert_eq!(receiver.recv().ok(), Some(1));
    Ok(())
}

//! An untyped handle is `Send`, `Sync` and `'static` for every value.
use forebear::{AnyRequest, Request, WaitError, scope, spawn};
use std::cell::Cell;
use std::collections::HashSet;
use std::rc::Rc;

fn anywhere<T: Send + Sync + 'static>(value: T) -> T {
    value
}

fn main() -> Result<(), WaitError> {
    let cell = spawn(|| Cell::new(1));
    let any = anywhere(cell.to_untyped());
    spawn(move || any.wait().is_ok());

    let rc = anywhere(Request::ready(Rc::new(1)).to_untyped());
    let text = String::new();
    let borrowed = scope(|s| s.spawn(|| &text));
    let of_borrowed: AnyRequest = anywhere(AnyRequest::from(&borrowed));
    drop(borrowed);
    drop(text);
    of_borrowed.wait()?;
    let all = HashSet::from([rc.clone(), of_borrowed]);
    assert!(all.contains(&rc));
    Ok(())
}

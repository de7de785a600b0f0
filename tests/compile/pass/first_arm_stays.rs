//! The first arm of a join stays on its stack: neither it nor what it returns need be `Send`.
use forebear::{WaitError, join, try_join};
use std::cell::Cell;
use std::rc::Rc;

fn main() -> Result<(), WaitError> {
    let rc = Rc::new(Cell::new(1));
    let (first, second) = join(|| rc.clone(), || 2);
    first.set(second);
    let (first, _) = try_join(|| Ok(rc.clone()), || Ok(2))?;
    let mut halves = [0; 8];
    let (left, right) = halves.split_at_mut(4);
    join(|| left[0] = first.get(), || right[0] = 2);
    println!("{halves:?}");
    Ok(())
}

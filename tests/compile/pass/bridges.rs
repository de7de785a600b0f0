//! What only moves a value needs no `Sync` of it: `into_then`, completions, futures that stay on their thread. Futures of other values are tasks.
use forebear::{Completer, Request, TakeFuture, WaitError, WaitFuture, block_on, scope};
use std::cell::Cell;
use std::future::{Future, IntoFuture};
use std::rc::Rc;

fn both<T: Send + Sync>() {}
fn task(_: impl Future + Send + 'static) {}

fn main() -> Result<(), WaitError> {
    both::<Completer<Cell<u8>>>();
    both::<TakeFuture<String>>();
    both::<WaitFuture<'static, String>>();

    let cell = Request::new(|| Cell::new(1)).into_then(|cell| Cell::new(cell.get() + 1));
    assert_eq!(cell.take()?.get(), 2);

    let (completer, answer) = Request::completer("a cell");
    std::thread::spawn(move || completer.complete(Cell::new(7)));
    assert_eq!(block_on(answer)??.get(), 7);

    let cell = Request::new(|| Cell::new(3));
    let local = Rc::new(4);
    let sum = block_on(async { Ok::<_, WaitError>((&cell).await?.get() + *local) })??;
    assert_eq!(sum, 7);
    task(Request::new(|| String::new()).into_future());
    task(async { Request::new(|| 1).await });

    let text = String::from("lent");
    let len = scope(|s| s.then(&s.spawn(|| text.as_str()), |text| text.len()));
    assert_eq!(len.take()?, 4);
    Ok(())
}

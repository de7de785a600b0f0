//! What consumes a handle cannot be called while its value is lent.
use forebear::{Request, WaitError};

fn take() -> Result<(), WaitError> {
    let request = Request::new(|| String::from("lent"));
    let lent = request.wait()?;
    let taken = request.take(); //~ E0505 cannot move out of `request` because it is borrowed
    println!("{lent} {taken:?}");
    Ok(())
}

fn try_take() -> Result<(), WaitError> {
    let request = Request::new(|| String::from("lent"));
    let lent = request.wait()?;
    let taken = request.try_take(); //~ E0505 cannot move out of `request` because it is borrowed
    println!("{lent} {taken:?}");
    Ok(())
}

fn clean() -> Result<(), WaitError> {
    let request = Request::new(|| String::from("lent"));
    let lent = request.wait()?;
    let rest = request.into_untyped(); //~ E0505 cannot move out of `request` because it is borrowed
    println!("{lent} {rest:?}");
    Ok(())
}

fn dropped() -> Result<(), WaitError> {
    let request = Request::new(|| String::from("lent"));
    let lent = request.get();
    drop(request); //~ E0505 cannot move out of `request` because it is borrowed
    println!("{lent:?}");
    Ok(())
}

fn main() -> Result<(), WaitError> {
    take()?;
    try_take()?;
    clean()?;
    dropped()
}

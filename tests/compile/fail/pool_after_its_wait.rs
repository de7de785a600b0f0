//! A pool is waited for once, and nothing is added to it after that: the wait consumes it.
use forebear::{RequestPool, WaitError};

fn add() -> Result<(), WaitError> {
    let mut pool = RequestPool::new();
    pool.add(|| 1);
    pool.wait()?;
    pool.add(|| 2); //~ E0382 borrow of moved value: `pool`
    Ok(())
}

fn wait_again() -> Result<(), WaitError> {
    let mut pool = RequestPool::new();
    pool.add(|| 1);
    pool.wait()?;
    pool.wait() //~ E0382 use of moved value: `pool`
}

fn main() -> Result<(), WaitError> {
    add()?;
    wait_again()
}

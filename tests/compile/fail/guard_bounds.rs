//! Guards stay on their thread, whatever they guard; locks are shared only if what they guard may go from thread to thread.

use std::cell::Cell;
use std::rc::Rc;

use forebear::sync::{Mutex, OnceLock, ReentrantMutex, RwLock};
use forebear::timer::TimerGuard;

fn send<T: Send>(_: T) {}
fn sync<T: Sync>(_: &T) {}

fn main() {
    let (mutex, lock, again) = (Mutex::new(1_u32), RwLock::new(1_u32), ReentrantMutex::new(1_u32));
    send(mutex.lock()); //~ E0277 cannot be sent between threads safely
    send(lock.read()); //~ E0277 cannot be sent between threads safely
    send(lock.write()); //~ E0277 cannot be sent between threads safely
    send(again.lock()); //~ E0277 cannot be sent between threads safely
    sync(&mutex.lock());
    sync(&Mutex::new(Cell::new(1_u32)));
    sync(&Mutex::new(Cell::new(1_u32)).lock()); //~ E0277 `Cell<u32>` cannot be shared between threads safely
    sync(&Mutex::new(Rc::new(1_u32))); //~ E0277 `Rc<u32>` cannot be sent between threads safely
    sync(&RwLock::new(Cell::new(1_u32))); //~ E0277 `Cell<u32>` cannot be shared between threads safely
    sync(&ReentrantMutex::new(Cell::new(1_u32)));
    sync(&ReentrantMutex::new(Rc::new(1_u32))); //~ E0277 `Rc<u32>` cannot be sent between threads safely
    fn timer(guard: TimerGuard<'_>) {
        send(guard); //~ E0277 cannot be sent between threads safely
    }
    sync(&OnceLock::<Cell<u32>>::new()); //~ E0277 `Cell<u32>` cannot be shared between threads safely
}

//! What a stack overflow says before the process aborts.
//!
//! A handler for the two faults that a guard can raise runs on an alternate stack of the worker's thread. If the
//! address is in the guard of the stack that this worker is on, it writes one line and aborts. The line has the
//! request's name, its stack and the remedy; it is written by `write(2)` from a buffer on the alternate stack. Every
//! other fault is passed unchanged to the handler that was installed before.
//!
//! # On a plain thread's own stack
//!
//! A plain thread that waits may run the request itself. Then the guard is the system's, and the thread is not ours to end: the handler writes a line that
//! names the request, and passes the fault on. It asks for two signs, which it gets without a call: the fault and the stack pointer are both by the
//! limit of the stack. So a bad address elsewhere is not taken for an overflow. std's handler, which is mostly next, then names the thread and aborts. It runs
//! on the thread's alternate stack, as this one does. That is small, and not ours: if little of it is left, nothing is written. A thread without one is killed
//! by the system, whose handlers need a stack.
//!
//! Going on after an overflow is refused: destructors would be skipped, locks stay locked, and frames borrowed by
//! others would be gone.

use forebear_context::shim::atomic::{AtomicPtr, Ordering};
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Once;

use super::{GUARD, MAX, OVERHEAD, SLOTS};
use crate::record::fiber;
use crate::record::header::Header;
use crate::stack::coroutine::Coroutine;

const SIGNALS: [libc::c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
const ALTERNATE: usize = 64 << 10;

/// How far from the limit of a plain thread's stack a fault is an overflow: a guard of std's is a page, and the limit is known to a few pages.
#[cfg(target_os = "linux")]
const NEAR: usize = 64 << 10;
/// What the line about a plain thread's stack, and the handler after it, need of the alternate stack.
#[cfg(target_os = "linux")]
const ROOM: usize = 4 << 10;

/// What was there before, per signal.
static PREVIOUS: [AtomicPtr<libc::sigaction>; 2] =
    [AtomicPtr::new(ptr::null_mut()), AtomicPtr::new(ptr::null_mut())];

/// Installs the handler, once in the life of the process.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        for (signal, previous) in SIGNALS.into_iter().zip(&PREVIOUS) {
            // SAFETY: both structures are plain data; the handler is async-signal-safe (see `handle`).
            unsafe {
                let mut old = MaybeUninit::<libc::sigaction>::zeroed();
                if libc::sigaction(signal, ptr::null(), old.as_mut_ptr()) != 0 {
                    continue;
                }
                previous.store(Box::into_raw(Box::new(old.assume_init())), Ordering::Release);
                let mut new = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
                new.sa_sigaction = handle as *const () as usize;
                new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigemptyset(&mut new.sa_mask);
                libc::sigaction(signal, &new, ptr::null_mut());
            }
        }
    });
}

/// The stack that the handler of this thread runs on. To be held for as long as the thread works.
pub(crate) struct AlternateStack {
    memory: *mut libc::c_void,
    previous: libc::stack_t,
    thread: std::marker::PhantomData<Cell<()>>,
}

impl AlternateStack {
    /// Gives the calling thread an alternate stack of its own, above a guard.
    pub(crate) fn new() -> Option<AlternateStack> {
        // SAFETY: a fresh mapping; the kernel gets its address, and `drop` takes it back first.
        unsafe {
            let memory = libc::mmap(
                ptr::null_mut(),
                ALTERNATE + GUARD,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            if memory == libc::MAP_FAILED {
                return None;
            }
            libc::mprotect(memory, GUARD, libc::PROT_NONE);
            let stack = libc::stack_t { ss_sp: memory.byte_add(GUARD), ss_flags: 0, ss_size: ALTERNATE };
            let mut previous = MaybeUninit::<libc::stack_t>::zeroed().assume_init();
            libc::sigaltstack(&stack, &mut previous);
            Some(AlternateStack { memory, previous, thread: std::marker::PhantomData })
        }
    }
}

impl Drop for AlternateStack {
    fn drop(&mut self) {
        // SAFETY: the thread goes back to what it had, then nobody uses the mapping.
        unsafe {
            libc::sigaltstack(&self.previous, ptr::null_mut());
            libc::munmap(self.memory, ALTERNATE + GUARD);
        }
    }
}

/// The handler. It accesses the fiber's thread-local (initialised by a constant, without a destructor), the coroutine
/// at the top of the faulting stack, and a buffer. It takes no lock and allocates nothing.
///
/// # Safety
///
/// The kernel calls it as a signal handler with `SA_SIGINFO`.
unsafe extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid record.
    let at = unsafe { (*info).si_addr() } as usize;
    if let Some(fiber) = fiber::get()
        && fiber.has_worker()
    {
        let limit = fiber.limit.get();
        if (limit - GUARD..limit).contains(&at) {
            // SAFETY: a worker's fiber is a coroutine's.
            let coroutine = unsafe { Coroutine::of_fiber(ptr::NonNull::from(fiber)).as_ref() };
            report(coroutine);
        }
    } else if let Some(fiber) = fiber::get()
        && let Some(request) = fiber.request()
    {
        // SAFETY: what the kernel gave.
        unsafe { report_on_thread(request, fiber.limit.get(), at, context) };
    }
    // SAFETY: what the kernel gave.
    unsafe { pass_on(signal, info, context) };
}

fn report(coroutine: &Coroutine) -> ! {
    let mut line = MessageLine::default();
    let name = coroutine.fiber.request().map_or("(none: a worker's loop)", Header::name);
    let address = ptr::from_ref(coroutine) as usize;
    let size = SLOTS
        .into_iter()
        .find(|slot| address - coroutine.fiber.limit.get() + GUARD <= *slot)
        .map_or(0, |slot| slot - OVERHEAD);
    line.put("forebear: request '");
    line.put_escaped(name);
    line.put("' overflowed its ");
    line.put_number(size >> 10);
    if size < MAX {
        line.put(" KiB stack: give it more, up to ");
        line.put_number(MAX >> 10);
        line.put(" KiB, by Request::builder().stack_size(bytes), or all by RuntimeBuilder::stack_size\n");
    } else {
        line.put(" KiB stack, and no request can have a larger one: recurse less deeply, put large values into boxes, or call it on a thread with a larger stack\n");
    }
    // SAFETY: the buffer is ours. Nothing can be done about a failed write.
    unsafe {
        libc::write(2, line.text.as_ptr().cast(), line.len);
        libc::abort()
    }
}

/// Writes the line about a plain thread's own stack, if that has overflowed.
///
/// # Safety
///
/// `context` is what the kernel has given to [`handle`].
#[cfg(target_os = "linux")]
#[inline(never)]
unsafe fn report_on_thread(request: &Header, limit: usize, at: usize, context: *mut libc::c_void) {
    // SAFETY: by contract.
    let Some(pointer) = (unsafe { interrupted_stack_pointer(context) }) else { return };
    // The limit is 0 if the system has not told it. The lowest page that can be used may lie below it.
    let near = limit.saturating_sub(NEAR)..limit;
    if !near.contains(&at) || !(near.start..limit + NEAR).contains(&pointer) || !has_room() {
        return;
    }
    let mut line = MessageLine::default();
    line.put("forebear: request '");
    line.put_escaped(request.name());
    line.put(
        "' overflowed the stack of the thread that runs it itself while it waits: say how much it needs by ",
    );
    line.put("Request::builder().stack_size(bytes), up to ");
    line.put_number(MAX >> 10);
    line.put(" KiB, and it runs elsewhere if the thread has less\n");
    // SAFETY: the buffer is ours. Nothing can be done about a failed write.
    unsafe { libc::write(2, line.text.as_ptr().cast(), line.len) };
}

/// The stack pointer is not looked up there.
///
/// # Safety
///
/// None: it is `unsafe` as its other form is.
#[cfg(not(target_os = "linux"))]
unsafe fn report_on_thread(_: &Header, _: usize, _: usize, _: *mut libc::c_void) {}

/// Where the stack of the faulting code was.
///
/// # Safety
///
/// As [`report_on_thread`].
#[cfg(target_os = "linux")]
unsafe fn interrupted_stack_pointer(context: *mut libc::c_void) -> Option<usize> {
    // SAFETY: with `SA_SIGINFO` this is what the kernel gives.
    let context = unsafe { context.cast::<libc::ucontext_t>().as_ref() }?;
    #[cfg(target_arch = "x86_64")]
    return Some(context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize);
    #[cfg(target_arch = "aarch64")]
    return Some(context.uc_mcontext.sp as usize);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        _ = context;
        None
    }
}

/// Whether the handler runs on an alternate stack that has room for the line.
#[cfg(target_os = "linux")]
fn has_room() -> bool {
    // SAFETY: plain data, for which all zeros are a value.
    let mut alternate = unsafe { MaybeUninit::<libc::stack_t>::zeroed().assume_init() };
    // SAFETY: asks only; the record is a local.
    unsafe { libc::sigaltstack(ptr::null(), &raw mut alternate) };
    alternate.ss_flags & libc::SS_ONSTACK != 0
        && fiber::stack_pointer().checked_sub(alternate.ss_sp.addr()).is_some_and(|left| left >= ROOM)
}

/// A line of text in a fixed buffer.
struct MessageLine {
    text: [u8; 512],
    len: usize,
}

impl Default for MessageLine {
    fn default() -> Self {
        MessageLine { text: [0; 512], len: 0 }
    }
}

impl MessageLine {
    fn put(&mut self, text: &str) {
        for &byte in text.as_bytes() {
            if self.len < self.text.len() {
                self.text[self.len] = byte;
                self.len += 1;
            }
        }
    }

    /// At most 200 bytes, without control characters.
    fn put_escaped(&mut self, text: &str) {
        for &byte in text.as_bytes().iter().take(200) {
            if self.len < self.text.len() {
                self.text[self.len] = if byte < 0x20 || byte == 0x7f { b'?' } else { byte };
                self.len += 1;
            }
        }
    }

    fn put_number(&mut self, mut number: usize) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        if let Ok(text) = std::str::from_utf8(&digits[at..]) {
            self.put(text);
        }
    }
}

/// Passes the fault to the handler that was installed before.
///
/// # Safety
///
/// The arguments are those that the kernel has given to [`handle`].
unsafe fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let previous = SIGNALS
        .iter()
        .position(|known| *known == signal)
        .map_or(ptr::null_mut(), |at| PREVIOUS[at].load(Ordering::Acquire));
    // SAFETY: a record that `install` stored and nobody frees; its handler is called as the kernel would.
    unsafe {
        match previous.as_ref() {
            Some(old) if old.sa_sigaction != libc::SIG_DFL && old.sa_sigaction != libc::SIG_IGN => {
                if old.sa_flags & libc::SA_SIGINFO != 0 {
                    let handler: unsafe extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                        std::mem::transmute(old.sa_sigaction);
                    handler(signal, info, context);
                } else {
                    let handler: unsafe extern "C" fn(libc::c_int) = std::mem::transmute(old.sa_sigaction);
                    handler(signal);
                }
            }
            _ => {
                // The default action: taken when the faulting instruction runs again.
                let mut default = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
                default.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &default, ptr::null_mut());
            }
        }
    }
}

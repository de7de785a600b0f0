//! Faults that are no overflow mean what they meant without a runtime.

use std::hint::black_box;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use forebear::{Request, Runtime};

use crate::child;

const PAGE: usize = 64 << 10;

fn runtime() -> Runtime {
    Runtime::builder().workers(1).run_on_caller(false).build().unwrap()
}

#[inline(never)]
fn read(at: *const u8) -> u8 {
    // SAFETY: none where the page is missing, which is what is tested; otherwise the caller's page.
    unsafe { black_box(at).read_volatile() }
}

#[inline(never)]
fn recurse(depth: u64) -> u64 {
    let frame = black_box([depth; 16]);
    if depth == u64::MAX {
        return 0;
    }
    let below = recurse(black_box(depth + 1));
    below + black_box(&frame)[3]
}

fn overflow_in_a_request(runtime: &Runtime) {
    Request::builder().name("deep").on(runtime).spawn(|| recurse(0)).take().unwrap();
}

const OVERFLOWED: &str = "forebear: request 'deep' overflowed its ";

#[test]
fn a_null_read_in_a_request_still_dies_by_sigsegv() {
    let end = child::run("", &[], |_| {
        runtime().spawn(|| read(ptr::null())).take().unwrap();
    });
    end.assert_killed_by(libc::SIGSEGV);
    assert_eq!(end.stderr, "");
}

#[test]
fn a_read_of_a_forbidden_page_in_a_request_still_dies_by_sigsegv() {
    let end = child::run("", &[], |_| {
        let page = Page::new(libc::PROT_NONE);
        let at = page.at as usize;
        runtime().spawn(move || read(at as *const u8)).take().unwrap();
    });
    end.assert_killed_by(libc::SIGSEGV);
    assert_eq!(end.stderr, "");
}

#[test]
fn a_null_read_in_a_plain_thread_still_dies_by_sigsegv() {
    let end = child::run("", &[], |_| {
        let _runtime = runtime();
        std::thread::spawn(|| read(ptr::null())).join().unwrap();
    });
    end.assert_killed_by(libc::SIGSEGV);
    assert_eq!(end.stderr, "");
}

#[test]
fn a_read_beyond_the_end_of_a_mapped_file_still_dies_by_sigbus() {
    let end = child::run("", &[], |_| {
        let file = tempfile::tempfile().unwrap();
        // SAFETY: a fresh mapping of an empty file.
        let at = unsafe {
            libc::mmap(ptr::null_mut(), PAGE, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        } as usize;
        runtime().spawn(move || read(at as *const u8)).take().unwrap();
    });
    end.assert_killed_by(libc::SIGBUS);
    assert_eq!(end.stderr, "");
}

/// Memory that a handler can make readable.
struct Page {
    at: *mut libc::c_void,
}

impl Page {
    fn new(protection: libc::c_int) -> Page {
        // SAFETY: a fresh anonymous mapping.
        let at = unsafe {
            libc::mmap(ptr::null_mut(), PAGE, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        Page { at }
    }
}

/// Where the program expects faults, and how many its handler has repaired.
static EXPECTED: AtomicUsize = AtomicUsize::new(0);
static REPAIRED: AtomicUsize = AtomicUsize::new(0);
/// What the program's handler passes other faults to.
static NEXT: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// Expects a fault, provokes it where `provoke` says, and sees it repaired.
fn expect_a_fault(provoke: impl FnOnce(usize) -> u8) {
    let page = Page::new(libc::PROT_NONE);
    EXPECTED.store(page.at as usize, Ordering::SeqCst);
    let before = REPAIRED.load(Ordering::SeqCst);
    assert_eq!(provoke(page.at as usize), 0);
    assert_eq!(REPAIRED.load(Ordering::SeqCst), before + 1);
}

fn repair() {
    // SAFETY: the page of `expect_a_fault`.
    unsafe { libc::mprotect(EXPECTED.load(Ordering::SeqCst) as *mut _, PAGE, libc::PROT_READ) };
    REPAIRED.fetch_add(1, Ordering::SeqCst);
}

/// A program's own handler: repairs what it expects and passes the rest on.
unsafe extern "C" fn handler(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid record.
    let at = unsafe { (*info).si_addr() } as usize;
    let page = EXPECTED.load(Ordering::SeqCst);
    if page != 0 && (page..page + PAGE).contains(&at) {
        return repair();
    }
    // SAFETY: set before the handler was installed, and never freed.
    let next = unsafe { NEXT.load(Ordering::SeqCst).as_ref() };
    let next = next.map_or(libc::SIG_DFL, |next| next.sa_sigaction);
    if next == libc::SIG_DFL {
        // SAFETY: async-signal-safe.
        unsafe { libc::_exit(3) };
    }
    // SAFETY: ours and std's handlers take three arguments.
    let next: unsafe extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
        unsafe { std::mem::transmute(next) };
    // SAFETY: called as the kernel would.
    unsafe { next(signal, info, context) };
}

/// The same in the old form, which is not told the address.
unsafe extern "C" fn plain_handler(_: libc::c_int) {
    repair();
}

fn install(handler: usize, flags: libc::c_int) {
    // SAFETY: plain data.
    let mut new: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    new.sa_sigaction = handler;
    new.sa_flags = flags | libc::SA_ONSTACK;
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: both records are valid for the call; the handlers above are async-signal-safe.
    let done = unsafe { libc::sigaction(libc::SIGSEGV, &new, old.as_mut_ptr()) };
    assert_eq!(done, 0);
    // SAFETY: filled by the call, and plain data anyway.
    let old = Box::new(unsafe { old.assume_init() });
    NEXT.store(Box::into_raw(old), Ordering::SeqCst);
}

fn install_handler() {
    install(handler as *const () as usize, libc::SA_SIGINFO);
}

fn faults_in_requests_and_threads(runtime: &Runtime) {
    expect_a_fault(|at| runtime.spawn(move || read(at as *const u8)).take().unwrap());
    expect_a_fault(|at| read(at as *const u8));
    expect_a_fault(|at| std::thread::spawn(move || read(at as *const u8)).join().unwrap());
    expect_a_fault(|at| runtime.run(move || read(at as *const u8)));
}

#[test]
fn a_handler_installed_before_the_runtime_gets_its_faults() {
    let end = child::run("", &[], |_| {
        install_handler();
        faults_in_requests_and_threads(&runtime());
    });
    end.assert_survived();
}

#[test]
fn a_handler_of_one_argument_installed_before_the_runtime_gets_its_faults() {
    let end = child::run("", &[], |_| {
        install(plain_handler as *const () as usize, 0);
        faults_in_requests_and_threads(&runtime());
    });
    end.assert_survived();
}

#[test]
fn an_overflow_is_reported_though_a_handler_was_installed_before() {
    let end = child::run("", &[], |_| {
        install_handler();
        let runtime = runtime();
        faults_in_requests_and_threads(&runtime);
        overflow_in_a_request(&runtime);
    });
    end.assert_killed_by(libc::SIGABRT);
    assert!(end.stderr.starts_with(OVERFLOWED), "{end:#?}");
}

#[test]
fn a_handler_installed_after_the_runtime_stays_also_when_another_is_built() {
    let end = child::run("", &[], |_| {
        let first = runtime();
        install_handler();
        faults_in_requests_and_threads(&first);
        let second = runtime();
        faults_in_requests_and_threads(&second);
        drop(first);
        faults_in_requests_and_threads(&second);
    });
    end.assert_survived();
}

#[test]
fn an_overflow_passed_on_by_a_handler_installed_after_is_reported() {
    let end = child::run("", &[], |_| {
        let runtime = runtime();
        install_handler();
        faults_in_requests_and_threads(&runtime);
        overflow_in_a_request(&runtime);
    });
    end.assert_killed_by(libc::SIGABRT);
    assert!(end.stderr.starts_with(OVERFLOWED), "{end:#?}");
}

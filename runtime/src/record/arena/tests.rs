//! Memory returns, told by counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::stock::{CHUNK, Stock};
use super::*;
use crate::foreign::arena_for;
use crate::{Request, Runtime, spawn};

/// Each makes so many: more than an arena keeps, so that it sheds.
const EACH: usize = 6_000;
const WAVES: usize = 40;

fn chunks(runtime: &Runtime) -> usize {
    runtime.shared().depot.stock.chunks()
}

/// Two roots that hold their threads until both are there, so one lands on each worker; which it is changes.
fn wave(runtime: &Runtime) -> [Vec<Request<usize>>; 2] {
    let met = Arc::new(AtomicUsize::new(0));
    let root = |_| {
        let met = met.clone();
        runtime.spawn(move || {
            met.fetch_add(1, Ordering::AcqRel);
            while met.load(Ordering::Acquire) < 2 {
                std::thread::yield_now();
            }
            (0..EACH).map(|n| spawn(move || n)).collect::<Vec<_>>()
        })
    };
    [0, 1].map(root).map(|root| root.take().unwrap())
}

#[test]
fn a_long_free_list_is_given_away_in_pieces() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    // This thread's arena is not a worker's, so nobody but this thread takes in what comes.
    let make = || runtime.enter(|| Request::new(|| 7));
    let (mut away, at_arena): (Vec<_>, Vec<_>) =
        (0..4 * LONG * BATCH).map(|n| (n, make())).partition(|one| one.0 < BATCH);
    let last = away.pop();
    drop(at_arena);
    let batches = || runtime.shared().depot.stock.batches();
    let end_elsewhere = |requests| {
        std::thread::scope(|scope| drop(scope.spawn(move || drop(requests))));
        let before = batches();
        // SAFETY: M3: this thread's, and the runtime is there.
        unsafe { arena_for(runtime.shared()).unwrap().as_ref() }.drain_returns();
        batches() - before
    };
    assert_eq!(end_elsewhere(last.into_iter().collect::<Vec<_>>()), SHED + 1);
    assert_eq!(end_elsewhere(away), SHED + 1, "nearly a batch has come, and is made up for");
}

#[test]
fn a_thread_that_waits_or_has_run_a_request_takes_in_what_others_have_returned() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let own = arena_for(runtime.shared()).unwrap();
    // SAFETY: M3: this thread's, and the runtime is there.
    let arena = || unsafe { own.as_ref() };
    let send_arena = || {
        let one = runtime.enter(|| Request::new(|| 7));
        std::thread::scope(|scope| drop(scope.spawn(move || drop(one))));
    };
    send_arena();
    assert!(arena().has_returns());
    let go = Arc::new(AtomicUsize::new(0));
    let goes_on = {
        let go = go.clone();
        runtime.spawn(move || {
            while go.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
        })
    };
    let waited = goes_on.wait_timeout(Duration::from_millis(1)).is_err();
    let left = arena().has_returns();
    go.store(1, Ordering::Release);
    goes_on.take().unwrap();
    assert!(waited && !left, "it has waited");
    arena().drain_returns();
    // The other direction of the address: it is this thread that runs this.
    let own = own.as_ptr().expose_provenance();
    let there = runtime.clone();
    let sent = runtime.enter(|| {
        Request::new(move || {
            let one = there.enter(|| Request::new(|| 7));
            std::thread::scope(|scope| drop(scope.spawn(move || drop(one))));
            // SAFETY: as above.
            unsafe { (*ptr::with_exposed_provenance::<Arena>(own)).has_returns() }
        })
    });
    assert!(sent.take().unwrap(), "it has run here");
    assert!(!arena().has_returns(), "it has run a request");
}

/// Each free cell may be of another chunk, so a few hundred may keep many mebibytes.
#[test]
fn a_thread_that_waits_or_has_run_a_request_keeps_a_few_free_cells() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    // SAFETY: M3: this thread's, and the runtime is there.
    let arena = unsafe { arena_for(runtime.shared()).unwrap().as_ref() };
    let make = |count| (0..count).map(|_| runtime.enter(|| Request::new(|| 7))).collect::<Vec<_>>();
    // So many chunks that the runtime is large, whatever becomes of the others.
    let _stays = make(20 * CELLS);
    let spare = || (0..CLASSES).map(|class| arena.spare(class)).max().unwrap();
    let stage = Arc::new(AtomicUsize::new(0));
    let goes_on = {
        let stage = stage.clone();
        runtime.spawn(move || {
            stage.store(1, Ordering::Release);
            while stage.load(Ordering::Acquire) == 1 {
                std::thread::yield_now();
            }
        })
    };
    while stage.load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    let waits = || assert!(goes_on.wait_timeout(Duration::from_millis(1)).is_err());
    let runs = || assert_eq!(runtime.enter(|| Request::new(|| 7).take().unwrap()), 7);
    for settle in [&waits as &dyn Fn(), &runs] {
        let few = make(200);
        settle();
        assert!(spare() <= 2 * KEPT);
        drop(few);
        assert!(spare() >= 200, "less than a batch");
        settle();
        assert!((KEPT..=2 * KEPT).contains(&spare()), "{}", spare());
        // What it keeps is enough for a thread that needs one at a time.
        let batches = || runtime.shared().depot.stock.batches();
        let before = batches();
        (0..10).for_each(|_| runs());
        assert_eq!(batches(), before);
    }
    stage.store(2, Ordering::Release);
    goes_on.take().unwrap();
}

#[test]
fn memory_returns_when_roots_land_on_changing_workers() {
    let runtime = Runtime::builder().workers(2).run_on_caller(false).build().unwrap();
    for round in 0..WAVES {
        let [a, b] = wave(&runtime);
        match round % 3 {
            // They end here, and returned from here.
            0 => a
                .into_iter()
                .chain(b)
                .enumerate()
                .for_each(|(n, one)| assert_eq!(one.take().unwrap(), n % EACH)),
            // On whichever worker takes them.
            1 => {
                let taken = [a, b].map(|part| {
                    runtime.spawn(move || part.into_iter().map(|one| one.take().unwrap()).sum::<usize>())
                });
                taken.into_iter().for_each(|sum| assert_eq!(sum.take().unwrap(), EACH * (EACH - 1) / 2));
            }
            // Nobody waits for them, and some are not over yet.
            _ => drop([a, b]),
        }
    }
    // What two waves have in use, since one may go on when the next begins, and what each arena keeps and has just got:
    // of both workers, and of this thread.
    let cell = STEP * usize::from(class_of(std::alloc::Layout::new::<(Header, usize)>()));
    let kept = 16 * BATCH + CHUNK / cell;
    let most = (4 * EACH + 3 * kept) * cell / CHUNK + 16;
    let made = 2 * EACH * WAVES * cell / CHUNK;
    assert!(most < made / 5, "then nothing would be shown");
    assert!(
        chunks(&runtime) <= most,
        "{} chunks, where {most} are enough; {made} were used",
        chunks(&runtime)
    );
}

#[test]
fn a_thread_that_makes_few_requests_touches_one_page_of_its_first_chunk() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let make = || runtime.enter(|| Request::new(|| 7));
    let first = make();
    // SAFETY: M3: this thread's, and the runtime is there; the handle.
    let (arena, class) = unsafe {
        let class = first.header_ptr().as_ref().memory_class.get();
        (arena_for(runtime.shared()).unwrap().as_ref(), usize::from(class))
    };
    let (page, chunk) = (stock::cells_of_a_page(class), stock::cells_of_a_chunk(class));
    assert!(page < chunk && page * class * STEP <= 4 << 10);
    assert_eq!(arena.owned[class].get(), page);
    let more: Vec<_> = (0..page).map(|_| make()).collect();
    assert_eq!(arena.owned[class].get(), chunk, "as soon as it makes more");
    let addresses = more.iter().chain([&first]).map(|one| one.header_ptr().addr().get() & !(CHUNK - 1));
    let chunks: std::collections::BTreeSet<_> = addresses.collect();
    assert_eq!(chunks.len(), 1);
}

#[test]
fn what_is_uncut_of_a_chunk_is_given_away_with_the_rest() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let first = runtime.enter(|| Request::new(|| 7));
    // SAFETY: M3: this thread's, and the runtime is there; the handle.
    let (arena, class) = unsafe {
        let class = first.header_ptr().as_ref().memory_class.get();
        (arena_for(runtime.shared()).unwrap().as_ref(), usize::from(class))
    };
    drop(first);
    arena.give_all();
    assert_eq!((arena.owned[class].get(), arena.spare(class)), (0, 0));
    let stock = &runtime.shared().depot.stock;
    let mut given = 0;
    while stock.batches() > 0 {
        let Found::Batch(batch) = stock.take(class) else { panic!("there is one") };
        let mut at = batch.head;
        let cells = std::iter::from_fn(|| {
            let cell = NonNull::new(at)?;
            // SAFETY: ours.
            at = unsafe { cell.as_ref().next };
            Some(cell)
        });
        assert_eq!(cells.count(), batch.len);
        given += batch.len;
    }
    assert_eq!(given, stock::cells_of_a_chunk(class), "else the chunk never returns to the system");
}

// ---- the stock -----------------------------------------------------------------------------------------------------------------

/// A class whose cells are as large as a small request's.
const CLASS: usize = 5;
const CELLS: usize = stock::cells_of_a_chunk(CLASS);

/// So many chunks' cells, in no order.
fn cells_of(stock: &Stock, chunks: usize) -> Vec<*mut Free> {
    let mut cells = Vec::new();
    for _ in 0..chunks {
        let Found::Chunk(chunk) = stock.take(CLASS) else { panic!("nothing has been given yet") };
        // SAFETY: it is ours.
        let mut at = unsafe { stock::cut(chunk, CLASS, 0..CELLS, |_| ()) }.head;
        while !at.is_null() {
            cells.push(at);
            // SAFETY: ours.
            at = unsafe { (*at).next };
        }
    }
    assert_eq!(cells.len(), chunks * CELLS);
    // A step that has no divisor in common with the number meets each once.
    (0..cells.len()).map(|n| cells[n * 7919 % cells.len()]).collect()
}

fn batch(cells: &[*mut Free]) -> Batch {
    let mut head = ptr::null_mut();
    for &cell in cells {
        // SAFETY: the test's.
        unsafe { (*cell).next = head };
        head = cell;
    }
    Batch { head, len: cells.len() }
}

fn taken(stock: &Stock) -> Vec<*mut Free> {
    let Found::Batch(batch) = stock.take(CLASS) else { panic!("there are none") };
    let list = std::iter::successors(Some(batch.head), |&at| {
        // SAFETY: taken.
        Some(unsafe { (*at).next })
    });
    list.take(batch.len).collect()
}

/// Looks at `now`, for the first time. Laggards may be looked for in other tests, so perhaps again.
fn mark(stock: &Stock, now: Instant) {
    while stock.unwanted() == 0 {
        assert_eq!(stock.inspect(now), LOOK);
        std::thread::yield_now();
    }
}

/// Looks at `now` until all that had been marked is gathered.
fn gather(stock: &Stock, now: Instant) {
    while stock.unwanted() > 0 {
        stock.inspect(now);
        std::thread::yield_now();
    }
}

#[test]
fn chunks_are_aligned_and_lie_in_pieces_that_are_not() {
    let stock = Stock::default();
    // Four pieces.
    let mut chunks: Vec<_> = (0..8)
        .map(|_| match stock.take(CLASS) {
            Found::Chunk(chunk) => chunk.addr().get(),
            Found::Batch(_) => panic!("a batch that nobody gave"),
        })
        .collect();
    chunks.sort_unstable();
    assert!(chunks.iter().all(|chunk| chunk.is_multiple_of(CHUNK)));
    assert!(chunks.windows(2).all(|pair| pair[1] - pair[0] >= CHUNK));
    for piece in stock.layouts() {
        assert!(piece.0.align() <= STEP, "such an alignment costs a page more");
        let within = |chunk: &&usize| piece.1 <= **chunk && **chunk + CHUNK <= piece.1 + piece.0.size();
        assert_eq!(chunks.iter().filter(within).count(), piece.0.size() / CHUNK - 1);
    }
}

#[test]
fn a_chunk_goes_back_when_nobody_has_wanted_its_cells_from_one_look_to_the_next() {
    let (stock, begin) = (Stock::default(), Instant::now());
    let cells = cells_of(&stock, 5);
    assert_eq!(stock.chunks(), 5);
    // SAFETY: the test's.
    cells.iter().for_each(|cell| unsafe { cell.cast::<u8>().write_bytes(1, CLASS * STEP) });
    let (some, rest) = cells.split_at(1_000);
    stock.give(CLASS, [batch(some), batch(rest)]);
    assert!(!stock.is_to_be_inspected(), "so few stay cut");
    mark(&stock, begin);
    assert_eq!(stock.inspect(begin + LOOK / 4), LOOK * 3 / 4);
    assert_eq!((stock.chunks(), stock.unwanted()), (5, 2));
    gather(&stock, begin + LOOK);
    assert_eq!((stock.chunks(), stock.batches()), (0, 0));
    for cell in cells {
        // SAFETY: the memory is there as long as the stock.
        let last = unsafe { cell.cast::<u8>().add(CLASS * STEP - 1).read() };
        assert_eq!(last, 0, "the system has got it back");
    }
    // And is used again before more is asked for.
    let pieces = stock.pieces();
    cells_of(&stock, 5);
    assert_eq!(stock.pieces(), pieces);
}

#[test]
fn who_takes_cells_between_two_looks_has_wanted_these_and_no_more() {
    let (stock, begin) = (Stock::default(), Instant::now());
    let cells = cells_of(&stock, 3);
    let (last, first) = cells.split_at(BATCH);
    stock.give(CLASS, [first, last].map(batch));
    mark(&stock, begin);
    // The last come is taken first, and comes back; then some of the one that came before.
    let mut back = taken(&stock);
    assert_eq!(back.len(), BATCH);
    back.extend(taken(&stock));
    assert_eq!((back.len(), stock.unwanted()), (2 * BATCH, 1), "the rest of a long one has not been wanted");
    stock.give(CLASS, [batch(&back)]);
    gather(&stock, begin + LOOK);
    assert_eq!((stock.chunks(), stock.batches()), (3, 1), "each chunk has a cell in that one");
    assert_eq!(taken(&stock).len(), BATCH, "it is handed out before what was gathered");
    assert_eq!(taken(&stock).len(), BATCH);
    stock.give(CLASS, [batch(&back)]);
    mark(&stock, begin + LOOK);
    gather(&stock, begin + 2 * LOOK);
    assert_eq!(stock.chunks(), 0);
}

#[test]
fn cells_of_chunks_in_use_are_handed_out_in_order_after_a_rest() {
    let (stock, begin) = (Stock::default(), Instant::now());
    let cells = cells_of(&stock, 2);
    // One of each is in use.
    let in_use = [cells.iter().min().unwrap(), cells.iter().max().unwrap()];
    let mut free: Vec<_> = cells.iter().copied().filter(|cell| !in_use.contains(&cell)).collect();
    stock.give(CLASS, [batch(&free)]);
    mark(&stock, begin);
    gather(&stock, begin + LOOK);
    assert_eq!((stock.chunks(), stock.batches()), (2, 0));
    free.sort_unstable();
    let (first, second) = (taken(&stock), taken(&stock));
    assert_eq!([first, second].concat(), free);
}

#[test]
fn no_chunk_goes_while_somebody_looks_for_laggards() {
    let (stock, begin) = (Stock::default(), Instant::now());
    let cells = cells_of(&stock, 1);
    stock.give(CLASS, [batch(&cells)]);
    mark(&stock, begin);
    reclaim::read_section(|| {
        assert_eq!(stock.inspect(begin + LOOK), LOOK);
        assert_eq!(stock.chunks(), 1);
    });
    gather(&stock, begin + LOOK);
    assert_eq!(stock.chunks(), 0);
}

#[test]
fn who_gives_wakes_a_worker_only_if_nobody_watches() {
    let (few, stock, begin) = (Stock::default(), Stock::default(), Instant::now());
    few.give(CLASS, [batch(&cells_of(&few, 3))]);
    assert!(!few.wants_a_watcher(), "so few stay cut");
    stock.give(CLASS, [batch(&cells_of(&stock, 20))]);
    assert!(stock.wants_a_watcher());
    assert!(!stock.wants_a_watcher(), "somebody has been woken");
    mark(&stock, begin);
    gather(&stock, begin + LOOK);
    assert!(!stock.is_to_be_inspected(), "a caller that gets true no longer watches");
    stock.give(CLASS, [batch(&cells_of(&stock, 20))]);
    assert!(stock.wants_a_watcher());
}

/// Cells do not go back to the allocator one by one, so it has to be told.
#[cfg(feature = "sanitizer")]
#[test]
fn a_free_cell_is_nobodys_to_the_sanitizer() {
    unsafe extern "C" {
        fn __asan_address_is_poisoned(at: *const u8) -> i32;
    }
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let one = runtime.enter(|| Request::new(|| 7));
    let header = ptr::from_ref(one.header()).cast::<u8>();
    // SAFETY: reads the shadow only.
    let is_poisoned = || unsafe { __asan_address_is_poisoned(header.add(64)) } == 1;
    assert!(!is_poisoned());
    // While somebody looks nothing is deferred; another test's look ends.
    let mut one = Some(one);
    let start = Instant::now();
    while !is_poisoned() && start.elapsed() < Duration::from_secs(60) {
        drop(one.take());
        drop(runtime.enter(|| Request::new(|| 7)));
    }
    assert!(is_poisoned());
}

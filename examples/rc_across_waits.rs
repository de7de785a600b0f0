//! `Rc` and `RefCell` alive across waits.
//!
//! Once it has started, a request stays on its thread for life, however often it waits. So whatever it keeps for itself
//! may be as single-threaded as it likes: no `Arc`, no `Mutex`, and a `RefCell` guard may stay open over a wait. Only
//! what *crosses* between requests must be `Send`: the closure that goes in and the value that comes out.
//!
//! Here several requests each build an index of the words of a book. Chapters are split into words by requests of their
//! own, which other threads may run; the index itself is a web of `Rc`s.
//!
//! ```text
//! cargo run --example rc_across_waits
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::thread;

use forebear::prelude::*;

/// Each word is stored once. The book's list of words, in order of appearance, and its index share it.
#[derive(Debug, Default)]
struct Words {
    index: BTreeMap<Rc<str>, Rc<RefCell<Entry>>>,
    in_order: Vec<Rc<str>>,
}

/// Where a word occurs.
#[derive(Debug, Default)]
struct Entry {
    chapters: Vec<usize>,
}

impl Words {
    fn add(&mut self, word: &str, chapter: usize) {
        let entry = match self.index.get(word) {
            Some(entry) => entry.clone(),
            None => {
                let word: Rc<str> = word.into();
                self.in_order.push(word.clone());
                self.index.entry(word).or_default().clone()
            }
        };
        entry.borrow_mut().chapters.push(chapter);
    }
}

/// A request's work: runs on one worker from the first line to the last.
fn index(book: &'static str) -> forebear::Result<BTreeMap<String, Vec<usize>>> {
    let home = thread::current().id();
    let words = Rc::new(RefCell::new(Words::default()));

    // All chapters are split at the same time, by whoever is free.
    let chapters: Vec<Request<Vec<&str>>> =
        book.split(". ").map(|text| spawn(move || text.split_whitespace().collect())).collect();

    let also_words = words.clone();
    for (number, chapter) in chapters.iter().enumerate() {
        // The guard is open while the request waits: nobody else can reach this `RefCell`, whatever runs meanwhile.
        let mut guard = also_words.borrow_mut();
        for word in chapter.wait()? {
            guard.add(word.trim_end_matches('.'), number + 1);
        }
    }
    drop(also_words);

    assert_eq!(thread::current().id(), home, "a request never changes its thread");
    let words = Rc::into_inner(words).expect("the other handle is gone").into_inner();
    assert!(
        words.in_order.iter().all(|word| Rc::strong_count(word) == 2),
        "once in the list, once in the index"
    );

    // Out of the request goes plain data: `Rc` stays behind, and the compiler sees to it.
    Ok(words.index.into_iter().map(|(word, entry)| (word.to_string(), entry.take().chapters)).collect())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rt = Runtime::builder().workers(2).build()?;
    let books = ["the sea. the ship on the sea. the storm. home", "a stone. a river. a stone in a river"];

    let indexes = rt.run(|| {
        let requests: Vec<_> = books.map(|book| try_spawn(move || index(book))).into();
        requests.into_iter().map(Request::take).collect::<Result<Vec<_>, WaitError>>()
    })?;

    assert_eq!(indexes[0]["the"], [1, 2, 2, 3]);
    assert_eq!(indexes[0]["sea"], [1, 2]);
    assert_eq!(indexes[0]["home"], [4]);
    assert_eq!(indexes[1]["river"], [2, 3]);
    for (book, index) in books.iter().zip(&indexes) {
        println!("{book:?}");
        for (word, chapters) in index {
            println!("  {word:6} in {chapters:?}");
        }
    }
    Ok(())
}

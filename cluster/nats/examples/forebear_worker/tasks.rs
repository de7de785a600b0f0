//! What the worker runs. The coordinator is built with the same file.

use forebear_cluster::{TaskFn, Tasks, tasks};

/// How often each letter of the alphabet occurs in a text.
pub(crate) const LETTERS: TaskFn<String, [u32; 26]> = TaskFn::new("letters", |_, text| {
    let mut counts = [0; 26];
    for letter in text.bytes().filter(u8::is_ascii_alphabetic) {
        counts[usize::from(letter.to_ascii_lowercase() - b'a')] += 1;
    }
    Ok(counts)
});

pub(crate) fn known() -> Tasks {
    tasks![LETTERS]
}

//! How the name of a request is shown. Names are the user's: of any length, from any source, perhaps from a
//! file. In a log line they must neither break the line nor repaint the terminal, so they are shown escaped
//! and cut, and given out in full only by accessors.

use std::fmt::{self, Write as _};

/// The most characters of a name that are shown.
const SHOWN: usize = 64;

/// A name as messages show it: control characters escaped, cut with an ellipsis to 64 characters.
///
/// A request without a name of its own is named after the type of its closure. Such a path loses its beginning, so that
/// the part that distinguishes it stays. Any other name loses its end.
#[derive(Debug, Clone, Copy)]
pub struct ShownName<'a>(pub &'a str);

/// The end of a path that is too long, from the start of a segment if there is one.
fn end_of_path(name: &str) -> Option<&str> {
    let (at, _) = name.char_indices().rev().nth(SHOWN - 1).filter(|(at, _)| *at > 0)?;
    if !name.contains("::") {
        return None;
    }
    let end = &name[at..];
    Some(match end.find("::").map(|at| &end[at + 2..]) {
        // Not if next to nothing would be left.
        Some(segments) if segments.len() >= end.len() / 2 => segments,
        _ => end.trim_start_matches(':'),
    })
}

impl fmt::Display for ShownName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = end_of_path(self.0);
        if end.is_some() {
            f.write_char('…')?;
        }
        let mut rest = end.unwrap_or(self.0).chars();
        for c in rest.by_ref().take(SHOWN) {
            if reorders_or_breaks(c) { write!(f, "{}", c.escape_default())? } else { f.write_char(c)? }
        }
        if rest.next().is_some() { f.write_char('…') } else { Ok(()) }
    }
}

/// Control characters, the two other line ends of Unicode, and what changes the direction of writing.
fn reorders_or_breaks(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

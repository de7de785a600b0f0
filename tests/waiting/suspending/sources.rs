//! Nothing public waits that is not in the tables: a look at the sources.

use std::collections::BTreeSet;
use std::path::Path;

use super::*;

/// What a public function of the sources is called, and whether it says that it waits.
fn public_functions(source: &str, mut with: impl FnMut(String, bool)) {
    let (mut owner, mut docs) = (String::new(), String::new());
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        if let Some(rest) = line.strip_prefix("impl") {
            // `impl<'a, T: Bound> Type<'a, T> {`: the word before its parameters.
            let rest = rest.trim_start();
            let rest = if rest.starts_with('<') { after_parameters(rest) } else { rest };
            owner = word(rest).to_owned();
        } else if code.starts_with("///") {
            docs += code;
            docs.push('\n');
            continue;
        } else if let Some(rest) = code.strip_prefix("pub fn ") {
            let mut signature = rest.to_owned();
            while !signature.contains('{') {
                let Some(more) = lines.next() else { break };
                signature += more;
            }
            let name = match line.starts_with(' ') {
                true => format!("{owner}::{}", word(rest)),
                false => word(rest).to_owned(),
            };
            let signature = signature.split("where").next().unwrap_or_default();
            let answers = signature.rsplit_once("->").map_or("", |(_, answer)| answer);
            let waits = answers.contains("Result<")
                && ["WaitError", "Cancelled>", "TimeoutError"].iter().any(|error| answers.contains(error))
                || ["Suspends", "ancellation point", "that `wait` would return"]
                    .iter()
                    .any(|say| docs.contains(say));
            with(name, waits);
        } else if code.starts_with("#[") {
            continue;
        }
        docs.clear();
    }
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

fn after_parameters(text: &str) -> &str {
    let (mut depth, mut before) = (0, ' ');
    let end = text.char_indices().find(|&(_, c)| {
        depth += i32::from(c == '<') - i32::from(c == '>' && before != '-');
        before = c;
        depth == 0
    });
    end.map_or("", |(at, _)| text[at + 1..].trim_start())
}

/// Modules that users see, whose names say which of several types of one name is meant.
const NAMED: [&str; 2] = ["watch", "oneshot"];

fn sources(folder: &Path, with: &mut impl FnMut(&str, &str)) {
    for entry in std::fs::read_dir(folder).expect("the sources can be read") {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, with);
        } else if path.extension().is_some_and(|ending| ending == "rs") && !path.ends_with("tests.rs") {
            let module = NAMED.into_iter().find(|name| path.file_stem().is_some_and(|stem| stem == *name));
            let module = module.map_or_else(String::new, |name| format!("{name}::"));
            with(&std::fs::read_to_string(&path).unwrap(), &module);
        }
    }
}

#[test]
fn every_public_function_that_waits_is_in_the_table() {
    let folders =
        ["runtime/src", "sync/src"].map(|folder| Path::new(env!("CARGO_MANIFEST_DIR")).join(folder));
    if !folders[0].exists() {
        // The published package has no other crates' sources beside it.
        return;
    }
    let mut waiting = BTreeSet::new();
    for folder in folders {
        let mut all = 0;
        sources(&folder, &mut |source, module| {
            public_functions(source, |name, waits| {
                all += 1;
                if waits {
                    waiting.insert(format!("{module}{name}"));
                }
            });
        });
        assert!(all > 50, "the look at {} finds {all} public functions", folder.display());
    }
    let table: BTreeSet<String> = WAITING
        .iter()
        .map(|(name, _)| *name)
        .chain(QUEUEING.iter().map(|(name, _)| *name))
        .chain(LOOKING.iter().map(|(name, _)| *name))
        .chain(UNMOVED.iter().copied())
        .map(str::to_owned)
        .collect();
    let missing: Vec<_> = waiting.difference(&table).collect();
    assert!(missing.is_empty(), "waits, or says so, and is not in the table: {missing:?}");
    let gone: Vec<_> = table.difference(&waiting).collect();
    assert!(gone.is_empty(), "in the table, and not found in the sources as waiting: {gone:?}");
}

#[test]
fn the_look_at_the_sources_sees_what_it_should() {
    let source = "
impl<'a, T: Into<X<'a>>, F: FnOnce() -> T> Owner<'a, T> {
    /// Plain.
    pub fn plain(&self) -> usize {
    }
    /// Waits.
    #[inline]
    pub fn answers(
        &self,
        f: impl Fn() -> u32,
    ) -> Result<(), WaitError>
    where
        T: Fn() -> u32,
    {
    }
    /// Suspends, or blocks.
    pub fn says_so(&self) {
    }
    /// Takes what a wait may answer.
    pub fn takes(&self, error: WaitError) -> u32 {
    }
    /// Makes another of it.
    pub fn makes(self) -> TimeoutError {
    }
}
/// A cancellation point.
pub fn free() {
}
pub(crate) fn hidden() -> Result<(), WaitError> {
}
";
    let mut found = Vec::new();
    public_functions(source, |name, waits| found.push((name, waits)));
    let expected = [
        ("Owner::plain", false),
        ("Owner::answers", true),
        ("Owner::says_so", true),
        ("Owner::takes", false),
        ("Owner::makes", false),
        ("free", true),
    ];
    assert_eq!(found, expected.map(|(name, waits)| (name.to_owned(), waits)));
}

//! What must compile, and what must not: a program for each bound.
//!
//! `compile/pass/*.rs` must compile. Each of `compile/fail/*.rs` must be refused, at exactly the lines that say so:
//!
//! ```text
//! spawn(move || drop(rc)); //~ E0277 `Rc<u32>` cannot be sent between threads safely
//! ```
//!
//! The code must be that, and the message must contain the text after it; an error without a code is written `error`, and
//! `//~^` is about the line above. A line without the mark must have no error, and one with it must have no other. So a
//! program that is refused for another reason, a misspelling for instance, is noticed. Programs whose names begin with `blocking` need that feature.
//!
//! # Why not whole messages
//!
//! The usual way (trybuild) pins all that the compiler prints, which differs from one toolchain to the next: such files
//! pass on one of the toolchains that we build with. Code, line and the decisive words are the part that is ours. rustdoc's
//! `compile_fail,E0277` would do, but checks the code on nightly only.
//!
//! # How
//!
//! One package, written to cargo's directory for tests, has all the programs as binaries, and one `cargo check` with
//! messages in one line each compiles them, against the lock file of the workspace and without a network.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

#[test]
fn compile_what_must_compile() {
    let programs = programs("pass");
    assert!(!programs.is_empty());
    report(programs.iter().flat_map(|program| complaints(program, &checked().of(program))));
}

#[test]
fn compile_what_must_be_refused_for_its_reason() {
    let programs = programs("fail");
    assert!(!programs.is_empty());
    let unmarked = programs.iter().filter(|program| program.expected.is_empty());
    let unmarked = unmarked.map(|program| format!("{}: says no error that it expects", program.name()));
    report(unmarked.chain(programs.iter().flat_map(|program| complaints(program, &checked().of(program)))));
}

#[test]
fn compile_tests_notice_another_reason_another_line_and_no_error() {
    let source = "fn main() {\n    send(Rc::new(1)); //~ E0277 `Rc<u32>` cannot be sent\n}\n";
    let program = Program::parse(PathBuf::from("/x/send.rs"), source);
    let found = |text: &str| Found::parse(text).into_iter().collect::<Vec<_>>();
    let right = "/x/send.rs:2:10: error[E0277]: `Rc<u32>` cannot be sent between threads safely: it is";
    assert_eq!(complaints(&program, &found(right)), Vec::<String>::new());
    for wrong in [
        "",
        "/x/send.rs:2:10: error[E0425]: cannot find function `send` in this scope",
        "/x/send.rs:2:10: error[E0277]: `Rc<String>` cannot be shared between threads safely",
        "/x/send.rs:3:10: error[E0277]: `Rc<u32>` cannot be sent between threads safely: it is",
        "/x/send.rs:2:10: warning: `Rc<u32>` cannot be sent",
    ] {
        assert_ne!(complaints(&program, &found(wrong)), Vec::<String>::new(), "{wrong}");
    }
    let both = [found(right), found("/x/send.rs:1:1: error: unused")].concat();
    assert_ne!(complaints(&program, &both), Vec::<String>::new());
    assert_ne!(complaints(&Program::parse("/x/send.rs".into(), "fn main() {}"), &found(right)), [""; 0]);
}

#[track_caller]
fn report(complaints: impl Iterator<Item = String>) {
    let complaints: Vec<_> = complaints.collect();
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

/// An error that a program is to have.
#[derive(Debug)]
struct Expected {
    line: usize,
    code: String,
    text: String,
}

#[derive(Debug)]
struct Program {
    path: PathBuf,
    expected: Vec<Expected>,
}

impl Program {
    fn parse(path: PathBuf, source: &str) -> Program {
        let marked = |(at, line): (usize, &str)| {
            let (place, mark) = line.split_once("//~")?.1.split_once(' ')?;
            let (code, text) = mark.split_once(' ')?;
            Some(Expected {
                line: at + 1 - place.len(),
                code: code.to_owned(),
                text: text.trim_end().to_owned(),
            })
        };
        Program { path, expected: source.lines().enumerate().filter_map(marked).collect() }
    }

    /// The program's own name; `fail/x.rs` and `pass/x.rs` are `fail_x` and `pass_x`.
    fn name(&self) -> String {
        let part = |path: Option<&Path>| path.unwrap().file_stem().unwrap().to_str().unwrap().to_owned();
        format!("{}_{}", part(self.path.parent()), part(Some(&self.path)))
    }
}

/// The programs of `tests/compile/<kind>`.
fn programs(kind: &str) -> Vec<Program> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile").join(kind);
    let mut paths: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "rs") && is_possible(path));
    paths.sort();
    let parse = |path: PathBuf| Program::parse(path.clone(), &fs::read_to_string(path).unwrap());
    paths.into_iter().map(parse).collect()
}

/// What the feature `blocking` brings cannot be had without it: its dependency may not be on this machine.
fn is_possible(program: &Path) -> bool {
    let needs_feature =
        program.file_stem().is_some_and(|name| name.as_encoded_bytes().starts_with(b"blocking"));
    cfg!(feature = "blocking") || !needs_feature
}

/// An error that the compiler reports.
#[derive(Clone, Debug)]
struct Found {
    file: String,
    line: usize,
    code: String,
    message: String,
}

impl Found {
    /// `file:line:column: error[E0277]: message`, or `error: message`; nothing if it is anything else.
    fn parse(line: &str) -> Option<Found> {
        let (place, rest) = line.split_once(": error")?;
        let mut place = place.rsplitn(3, ':').skip(1);
        let at = place.next()?.parse().ok()?;
        let (code, message) = rest.split_once(": ")?;
        let code = code.trim_matches(['[', ']']);
        let code = if code.is_empty() { "error" } else { code };
        Some(Found {
            file: Path::new(place.next()?).to_str()?.to_owned(),
            line: at,
            code: code.to_owned(),
            message: message.to_owned(),
        })
    }
}

/// Where what was found is not what was expected.
fn complaints(program: &Program, found: &[Found]) -> Vec<String> {
    let place = |line: usize| format!("{}:{line}", program.path.display());
    let mut complaints = Vec::new();
    let expected = |found: &Found| {
        let at = program.expected.iter().find(|expected| expected.line == found.line)?;
        (at.code == found.code && found.message.contains(&at.text)).then_some(())
    };
    for found in found.iter().filter(|found| expected(found).is_none()) {
        complaints.push(format!("{}: not expected: {} {}", place(found.line), found.code, found.message));
    }
    let lines: BTreeSet<_> = found.iter().map(|found| found.line).collect();
    for missing in program.expected.iter().filter(|expected| !lines.contains(&expected.line)) {
        complaints.push(format!(
            "{}: compiles, but must not: {} {}",
            place(missing.line),
            missing.code,
            missing.text
        ));
    }
    complaints
}

/// What one run of the compiler over all programs has found.
struct Checked(Vec<Found>);

impl Checked {
    fn of(&self, program: &Program) -> Vec<Found> {
        let of = |found: &&Found| Path::new(&found.file) == program.path;
        self.0.iter().filter(of).cloned().collect()
    }
}

fn checked() -> &'static Checked {
    static CHECKED: OnceLock<Checked> = OnceLock::new();
    CHECKED.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compile");
        let programs: Vec<_> = ["pass", "fail"].into_iter().flat_map(programs).collect();
        fs::create_dir_all(package.join("src")).unwrap();
        fs::write(package.join("Cargo.toml"), manifest(root, &programs)).unwrap();
        fs::copy(root.join("Cargo.lock"), package.join("Cargo.lock")).unwrap();
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args([
            "check",
            "--bins",
            "--offline",
            "--keep-going",
            "--message-format=short",
            "--color=never",
        ]);
        cargo.arg("--target-dir").arg(package.join("target")).current_dir(&package);
        // The flags that the tests are built with are not the programs' business.
        for flags in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET"] {
            cargo.env_remove(flags);
        }
        let output = cargo.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        let found: Vec<_> = text.lines().filter_map(Found::parse).collect();
        let ours = |found: &Found| programs.iter().any(|program| program.path == Path::new(&found.file));
        // Nothing of it is to be trusted if cargo fails for a reason that lies elsewhere.
        assert!(!found.is_empty() && found.iter().all(ours), "{text}");
        Checked(found)
    })
}

fn manifest(root: &Path, programs: &[Program]) -> String {
    let features: &[&str] = if cfg!(feature = "blocking") { &["blocking"] } else { &[] };
    let mut text = format!(
        "[workspace]\n\n[package]\nname = \"forebear-compile-tests\"\nedition = \"2024\"\npublish = false\nautobins = \
         false\n\n[dependencies]\nforebear = {{ path = {root:?}, features = {features:?} }}\n"
    );
    for member in ["context", "sync"] {
        writeln!(text, "forebear-{member} = {{ path = {:?} }}", root.join(member)).unwrap();
    }
    for program in programs {
        let (name, path) = (program.name(), &program.path);
        write!(text, "\n[[bin]]\nname = {name:?}\npath = {path:?}\n").unwrap();
    }
    text
}

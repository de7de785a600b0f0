//! What the tool does, by a small build in a directory of its own.

use std::num::NonZero;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::buildfile::Buildfile;
use super::{Became, Terms, build, print};

const BUILDFILE: &str = "
app: main.o text.o
    cat main.o text.o > app
main.o: main.c
    sed s/^/compiled:/ main.c > main.o
text.o: text.c
    sed s/^/compiled:/ text.c > text.o
docs: guide broken.html
    touch docs
guide:
    echo guide > guide
broken.html:
    exit 3
hen: egg
    touch hen
egg: nest hen
    touch egg
nest:
    touch nest
slow:
    echo $$ > slow.pid; exec sleep 3600
after_slow: slow
    touch after_slow
";

const JOBS: NonZero<usize> = NonZero::new(2).unwrap();

type Shown = Result<(), Box<dyn std::error::Error>>;

pub(crate) fn off(tokio: &Handle) -> Shown {
    let dir = tempfile::tempdir()?;
    std::fs::write(dir.path().join("main.c"), "main\n")?;
    std::fs::write(dir.path().join("text.c"), "text\n")?;
    let file = Arc::new(Buildfile::parse(BUILDFILE, dir.path())?);
    let show = |what: &str, target: &str, keep_going: bool| -> Shown {
        print(format_args!("-- {what}"))?;
        match build(&file, &[target.to_owned()], Terms { jobs: JOBS, keep_going }, tokio) {
            Ok(became) => {
                became.iter().try_for_each(|(target, became)| print(format_args!("{target}: {became}")))?
            }
            Err(mistake) => print(mistake)?,
        }
        Ok(())
    };

    show("a build", "app", false)?;
    assert_eq!(std::fs::read_to_string(dir.path().join("app"))?, "compiled:main\ncompiled:text\n");
    show("once more", "app", false)?;
    show("a target that fails, the others are built all the same", "docs", true)?;
    show("a cycle", "hen", false)?;
    show("no such target", "hat", false)?;

    // Presses Ctrl-C when the slow command runs.
    let pid_file = dir.path().join("slow.pid");
    let presses = std::thread::spawn(move || press_ctrl_c_when(&pid_file));
    show("Ctrl-C", "after_slow", false)?;
    let child = presses.join().map_err(|_| "nobody pressed Ctrl-C")?;
    poll(|| !is_running(&child));
    print("the child has gone")?;
    assert_eq!(
        build(&file, &["nest".to_owned()], Terms { jobs: JOBS, keep_going: false }, tokio)?[0].1,
        Became::Built
    );
    Ok(())
}

/// Looks now and then.
fn poll(so: impl Fn() -> bool) {
    while !so() {
        _ = forebear::time::sleep(Duration::from_millis(1));
    }
}

/// The number of the child process that was running then.
fn press_ctrl_c_when(pid_file: &Path) -> String {
    let read = || std::fs::read_to_string(pid_file).unwrap_or_default();
    poll(|| read().ends_with('\n'));
    let me = std::process::id().to_string();
    Command::new("kill").args(["-INT", &me]).status().expect("there is a program `kill`");
    read().trim().to_owned()
}

fn is_running(pid: &str) -> bool {
    Command::new("kill")
        .args(["-0", pid])
        .stderr(std::process::Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

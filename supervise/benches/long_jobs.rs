//! What a long job pays: asking whether to stop, the end of a join, a checkpoint beside `dd`, a save beside its steps, a million numbers for TensorBoard.
//!
//! `cargo bench -p forebear-supervise` prints a table, each figure the median of nine rounds, with a verdict where there is a goal. The checkpoint goes to the directory of the environment variable
//! `DIRECTORY`, else to the system's temporary one; `dd` writes beside it in the same round.

use std::fs;
use std::hint::black_box;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebear::sync::RwLock;
use forebear::time::sleep;
use forebear::{Error, yield_now};
use forebear_supervise::{
    Checkpoints, Coordinator, CopiedState, EventWriter, SavedSections, Sections, State, Summary, Supervisor,
};

const ROUNDS: usize = 9;
const MIB: usize = 1 << 20;
/// Bytes of the checkpoint.
const BIG: usize = 256 * MIB;

fn median(mut round: impl FnMut() -> f64) -> f64 {
    let mut figures: Vec<f64> = (0..ROUNDS).map(|_| round()).collect();
    figures.sort_by(f64::total_cmp);
    figures[ROUNDS / 2]
}

/// What a figure must reach.
#[derive(Clone, Copy)]
enum Goal {
    AtMost(f64),
    AtLeast(f64),
    /// It is for information.
    None,
}

fn row(what: &str, figure: f64, unit: &str, goal: Goal) {
    let (goal, verdict) = match goal {
        Goal::AtMost(most) => {
            (format!("at most {most} {unit}"), if figure <= most { "held" } else { "missed" })
        }
        Goal::AtLeast(least) => {
            (format!("at least {least} {unit}"), if figure >= least { "held" } else { "missed" })
        }
        Goal::None => (String::new(), ""),
    };
    println!("| {what} | {figure:.3} {unit} | {goal} | {verdict} |");
}

/// Bytes, written as they are.
struct Bytes(Vec<u8>);

impl State for Bytes {
    fn schema(&self) -> u64 {
        1
    }

    fn save(&self, out: &mut Sections<'_>) -> Result<(), Error> {
        out.put_bytes("bytes", &self.0)
    }

    fn restore(&self, from: &SavedSections) -> Result<(), Error> {
        drop(from.bytes("bytes")?);
        Ok(())
    }
}

fn bytes() -> Vec<u8> {
    (0..BIG).map(|n| (n * 7919) as u8).collect()
}

/// The same, copied before they are written.
struct Copying(Vec<u8>);

impl State for Copying {
    fn schema(&self) -> u64 {
        1
    }

    fn save(&self, out: &mut Sections<'_>) -> Result<(), Error> {
        out.put_bytes("bytes", &self.0)
    }

    fn restore(&self, _: &SavedSections) -> Result<(), Error> {
        Ok(())
    }

    fn copy(&self) -> Option<Box<dyn CopiedState>> {
        let copy = self.0.clone();
        Some(Box::new(move |out: &mut Sections<'_>| out.put_bytes("bytes", &copy)))
    }
}

/// The same in blocks of a mebibyte. A copy shares them.
struct Blocks(Vec<Arc<Vec<u8>>>);

impl State for Blocks {
    fn schema(&self) -> u64 {
        1
    }

    fn save(&self, out: &mut Sections<'_>) -> Result<(), Error> {
        let mut writer = out.writer("bytes")?;
        for block in &self.0 {
            writer.write_all(block)?;
        }
        writer.close()
    }

    fn restore(&self, _: &SavedSections) -> Result<(), Error> {
        Ok(())
    }

    fn copy(&self) -> Option<Box<dyn CopiedState>> {
        let copy = Blocks(self.0.clone());
        Some(Box::new(move |out: &mut Sections<'_>| copy.save(out)))
    }
}

/// Nanoseconds for one look.
fn should_stop() -> f64 {
    const LOOKS: u32 = 20_000_000;
    let coordinator = Coordinator::new();
    let me = coordinator.enlist("bench");
    median(|| {
        let begun = Instant::now();
        for _ in 0..LOOKS {
            black_box(me.should_stop());
        }
        begun.elapsed().as_nanos() as f64 / f64::from(LOOKS)
    })
}

/// Microseconds from the end of the last of a hundred workers to the return of the join.
fn join() -> f64 {
    median(|| {
        let coordinator = Coordinator::new();
        let members: Vec<_> = (0..100).map(|n| coordinator.enlist(n.to_string())).collect();
        let joins = coordinator.clone();
        let thread = std::thread::spawn(move || {
            joins.join().expect("nobody fails");
            Instant::now()
        });
        // Long enough for the join to fall asleep.
        std::thread::park_timeout(Duration::from_millis(5));
        drop(members);
        let ended = Instant::now();
        let returned = thread.join().expect("it does not panic");
        returned.saturating_duration_since(ended).as_nanos() as f64 / 1_000.0
    })
}

/// Mebibytes a second, of a checkpoint and of `dd`, in the same round; their ratio.
fn checkpoint() -> [f64; 3] {
    let base = std::env::var_os("DIRECTORY").map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = base.join(format!("forebear-bench-{}", std::process::id()));
    let checkpoints = Checkpoints::open(&dir).expect("the directory can be made").keep(1);
    let state = Arc::new(Bytes(bytes()));
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for step in 0..ROUNDS as u64 {
        let begun = Instant::now();
        checkpoints.save(step, &state).expect("there is room");
        let us = begun.elapsed();
        // The blocks of the checkpoint before are freed meanwhile; `dd` should not pay for that.
        std::thread::park_timeout(Duration::from_millis(300));
        let file = dir.join("dd");
        let begun = Instant::now();
        let done = Command::new("dd")
            .args(["if=/dev/zero", "bs=1M", "conv=fsync", "status=none"])
            .arg(format!("count={}", BIG / MIB))
            .arg(format!("of={}", file.display()))
            .status();
        let dd = begun.elapsed();
        assert!(done.is_ok_and(|status| status.success()), "dd fails");
        let _ = fs::remove_file(file);
        let rate = |took: Duration| (BIG / MIB) as f64 / took.as_secs_f64();
        ours.push(rate(us));
        theirs.push(rate(dd));
        ratios.push(rate(us) / rate(dd));
    }
    let _ = fs::remove_dir_all(dir);
    [ours, theirs, ratios].map(|mut figures| {
        figures.sort_by(f64::total_cmp);
        figures[ROUNDS / 2]
    })
}

/// How much of its time a job loses while its state of 256 MiB is saved, in percent: by how much fewer steps it makes meanwhile than in the same time without a save. And how long a
/// save takes, in milliseconds.
fn share_lost<S: State>(state: S) -> [f64; 2] {
    let base = std::env::var_os("DIRECTORY").map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = base.join(format!("forebear-bench-job-{}", std::process::id()));
    let never = Duration::from_secs(1_000_000);
    let checkpoints = Checkpoints::open(&dir).expect("the directory can be made").keep(1);
    let builder = Supervisor::builder(state).dir(&dir).checkpoints(checkpoints).no_events();
    let supervisor = builder.save_every(never).count_steps_every(never).build();
    let (mut lost, mut took) = (Vec::new(), Vec::new());
    let ended = supervisor.run(|session| {
        let steps = session.clone();
        session.coordinator().spawn("steps", move |_| {
            loop {
                // Some 20 microseconds of work.
                steps.step(|_| black_box((0..20_000_u64).fold(0, |sum, n| sum ^ n.wrapping_mul(sum + 1))))?;
            }
        });
        let rate = |during: &mut dyn FnMut() -> Result<(), Error>| {
            let (begun, before) = (Instant::now(), session.steps().get());
            during()?;
            let took = begun.elapsed().as_secs_f64();
            Ok::<_, Error>(((session.steps().get() - before) as f64 / took, took))
        };
        for _ in 0..ROUNDS {
            let (alone, _) = rate(&mut || Ok(sleep(Duration::from_millis(500))?))?;
            let (beside, seconds) = rate(&mut || Ok(session.save_now().map(drop)?))?;
            lost.push(100.0 * (1.0 - beside / alone));
            took.push(1_000.0 * seconds);
        }
        session.request_stop();
        Ok(())
    });
    ended.expect("there is room");
    let _ = fs::remove_dir_all(dir);
    [lost, took].map(|mut figures| {
        figures.sort_by(f64::total_cmp);
        figures[ROUNDS / 2]
    })
}

/// Nanoseconds of an empty step, and of the parts of it: the yield, and a shared lock with an addition.
fn step() -> [f64; 3] {
    const STEPS: u32 = 200_000;
    let supervisor =
        Supervisor::builder(Copying(Vec::new())).no_checkpoints().no_events().on_warning(|_| ()).build();
    let per_step = |begun: Instant| begun.elapsed().as_nanos() as f64 / f64::from(STEPS);
    let measured = supervisor.run(|session| {
        let (lock, counter) = (RwLock::new(()), AtomicU64::new(0));
        let mut figures = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            for _ in 0..STEPS {
                session.step(|state| _ = black_box(state))?;
            }
            figures[0].push(per_step(begun));
            let begun = Instant::now();
            for _ in 0..STEPS {
                yield_now()?;
            }
            figures[1].push(per_step(begun));
            let begun = Instant::now();
            for _ in 0..STEPS {
                let held = lock.read_or_cancelled()?;
                black_box(counter.fetch_add(1, Ordering::Relaxed));
                drop(held);
            }
            figures[2].push(per_step(begun));
        }
        Ok(figures.map(|mut figures| {
            figures.sort_by(f64::total_cmp);
            figures[ROUNDS / 2]
        }))
    });
    measured.expect("nothing fails").expect("nothing stops it")
}

/// Seconds for a million numbers, until they are in the file.
fn numbers() -> f64 {
    let dir = std::env::temp_dir().join(format!("forebear-events-{}", std::process::id()));
    let took = median(|| {
        let events = EventWriter::create(&dir).expect("the directory can be made");
        let begun = Instant::now();
        for step in 0..1_000_000 {
            events.write(step, Summary::new().scalar("loss", 0.5)).expect("there is room");
        }
        events.close().expect("there is room");
        begun.elapsed().as_secs_f64()
    });
    let _ = fs::remove_dir_all(dir);
    took
}

fn main() {
    // `cargo test --benches` and listings want no measurement.
    if std::env::args().any(|argument| argument == "--test" || argument == "--list") {
        return;
    }
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = processor.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    println!("Processor{processor}; median of {ROUNDS} rounds.\n\n| what | | goal | |\n|---|--:|---|---|");
    row("`Member::should_stop`", should_stop(), "ns", Goal::AtMost(3.0));
    row("the last end of 100 workers to the join's return", join(), "µs", Goal::AtMost(1_000.0));
    let [whole, yielding, counting] = step();
    row("an empty `Session::step`", whole, "ns", Goal::None);
    row("of that, the yield to other requests", yielding, "ns", Goal::None);
    row("of that, the shared lock and the count", counting, "ns", Goal::None);
    row("a million numbers", numbers(), "s", Goal::AtMost(0.5));
    let [ours, theirs, ratio] = checkpoint();
    row("a checkpoint of 256 MiB", ours, "MiB/s", Goal::None);
    row("`dd conv=fsync` of the same", theirs, "MiB/s", Goal::None);
    row("their ratio", ratio, "", Goal::AtLeast(0.9));
    let [lost, took] = share_lost(Copying(bytes()));
    row("a save of 256 MiB beside a job's steps, copied first", took, "ms", Goal::None);
    row("share of the job's time that it costs meanwhile", lost, "%", Goal::None);
    let [lost, took] =
        share_lost(Blocks(bytes().chunks(MIB).map(|block| Arc::new(block.to_vec())).collect()));
    row("the same, of a state in shared blocks", took, "ms", Goal::None);
    row("share of the job's time that it costs meanwhile", lost, "%", Goal::None);
}

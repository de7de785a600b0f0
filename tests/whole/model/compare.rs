//! Runs one program on a real runtime beside the reference, and compares what is told after every step.
//!
//! A step is over when nothing moves any more: when all threads of this process but the one that asks have been seen
//! asleep twice, and have not been awake in between. So nothing is waited for that may not come, and a lost wake-up is a
//! line that is missing, at the step at which it was lost.

use std::fs;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forebear::State;

use super::actors::World;
use super::program::{Order, Step, THREADS};
use super::reference::{Life, Reference};
use super::support::Kind;

/// Runs the program to its end, perhaps with requests that have stacks of their own all. `Err`: what went on, and where the two part.
pub(crate) fn compare(program: &[Step], kind: Kind, own_stacks: bool) -> Result<(), String> {
    // The threads of another program would look like this one's.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);

    let world = World::new(kind, own_stacks);
    let mut threads = Vec::new();
    for me in 0..THREADS {
        let world = Arc::clone(&world);
        threads.push(thread::spawn(move || world.thread(me)));
        // A seeded runtime belongs to the first.
        rest()?;
    }
    let mut reference = Reference::new(own_stacks);
    let mut story = String::new();
    let mut came = Ok(());
    let mut steps = program.iter();
    loop {
        // After the program's steps those that bring it to its end.
        let step = match steps.next() {
            Some(step) => reference.resolve(step),
            None => match reference.closing() {
                Some(step) => Some(step),
                None => break,
            },
        };
        let Some(step) = step else { continue };
        came = one(&world, kind, &mut reference, &step, &mut story);
        if came.is_err() {
            break;
        }
    }
    // Also after a difference: as little as possible stays behind.
    world.dismiss();
    if came.is_err() {
        for request in world.all() {
            request.abort(forebear::CancelReason::Aborted);
        }
    }
    let rested = rest();
    came = came.and(rested);
    // By a thread of its own, which stays behind if the runtime does not come to its end.
    let last = thread::spawn(move || {
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        drop(world);
    });
    let rested = rest();
    if last.is_finished() {
        last.join().unwrap();
    } else {
        came = came.and(rested).and(Err("    the runtime does not come to its end".to_owned()));
    }
    if std::env::var_os("FOREBEAR_MODEL_STORIES").is_some() {
        eprintln!("on {kind:?}:\n{story}");
    }
    came.map_err(|difference| format!("on {kind:?}:\n{story}{difference}"))
}

fn one(
    world: &World,
    kind: Kind,
    reference: &mut Reference,
    step: &Step,
    story: &mut String,
) -> Result<(), String> {
    *story += &format!("  to {}: {:?}\n", step.actor, step.order);
    let mut expected = reference.carry_out(step);
    if let Kind::Seeded(_) = kind {
        // Time jumps as soon as nothing else goes on.
        while let Some(pass) = reference.next_to_time_out() {
            expected.extend(reference.carry_out(&pass));
        }
    }
    match step.order {
        Order::Pass => world.pass(step.actor),
        order => world.order(step.actor, order),
    }
    rest()?;
    let mut told = world.told();
    expected.sort();
    told.sort();
    if expected != told {
        let only = |these: &[String], those: &[String]| {
            these
                .iter()
                .filter(|line| !those.contains(line))
                .fold(String::new(), |all, line| all + "\n      " + line)
        };
        return Err(format!(
            "    promised only:{}\n    seen only:{}\n    all that was seen: {told:?}",
            only(&expected, &told),
            only(&told, &expected),
        ));
    }
    for line in told {
        *story += &format!("      {line}\n");
    }
    for id in reference.requests() {
        let (expected, is) = (expected_state(&reference.all[id].life), state(world.look(id).state()));
        if expected != is {
            return Err(format!("    {id} should be {expected} and is {is}"));
        }
    }
    Ok(())
}

fn expected_state(life: &Life) -> &'static str {
    match life {
        Life::New => "new",
        Life::Running => "running",
        Life::Finished => "finished",
        Life::Failed(_) => "failed",
        Life::Cancelled => "cancelled",
    }
}

fn state(state: State) -> &'static str {
    match state {
        State::New => "new",
        State::Queued => "queued",
        State::Finished => "finished",
        State::Failed => "failed",
        State::Cancelled => "cancelled",
        _ => "running",
    }
}

/// Returns when nothing moves any more.
fn rest() -> Result<(), String> {
    let begin = Instant::now();
    let mut before = None;
    while begin.elapsed() < Duration::from_secs(20) {
        let now = asleep();
        if now.is_some() && now == before {
            return Ok(());
        }
        if now.is_none() {
            thread::yield_now();
        }
        before = now;
    }
    Err("    it does not come to rest".to_owned())
}

/// How often each of the other threads has gone to sleep, if all of them are asleep.
fn asleep() -> Option<Vec<(String, String)>> {
    let me = fs::read_link("/proc/thread-self").ok()?;
    let mut all = Vec::new();
    for thread in fs::read_dir("/proc/self/task").ok()? {
        let thread = thread.ok()?;
        if Some(&*thread.file_name()) == me.file_name() {
            continue;
        }
        // One that has just gone has no status.
        let status = fs::read_to_string(thread.path().join("status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        if !field("State:")?.starts_with('S') {
            return None;
        }
        all.push((thread.file_name().into_string().ok()?, field("voluntary_ctxt_switches:")?.to_owned()));
    }
    Some(all)
}

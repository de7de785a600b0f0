//! The job under a supervisor: checkpoints, summaries, a progress bar, Ctrl-C.

use std::path::PathBuf;
use std::time::Duration;

use forebear::Error;
use forebear::timer::expires;
use forebear_supervise::{Coordinator, Every, Session, Snapshot, Summary, Supervisor};
use indicatif::{ProgressBar, ProgressStyle};

use crate::Arguments;
use crate::kmeans::{Found, Model, read};

/// What the sections of a checkpoint mean. To be changed together with [`Model`].
const SCHEMA: u64 = 1;

/// What this process does of the whole.
pub(crate) struct Part {
    /// Where its checkpoints and summaries are.
    pub(crate) dir: PathBuf,
    /// Which colours it begins with, and how many choices there are.
    pub(crate) start: usize,
    pub(crate) starts: usize,
    /// How long a step may take. An expiration timer sees to that.
    pub(crate) step_limit: Option<Duration>,
    /// After this step it hangs.
    pub(crate) stuck_at: Option<u64>,
}

/// How it has ended.
pub(crate) struct Ended {
    /// Whether it has come to the last step. It was stopped otherwise.
    pub(crate) is_complete: bool,
    pub(crate) step: u64,
    pub(crate) model: Model,
}

impl Part {
    /// All of it.
    pub(crate) fn whole(arguments: &Arguments) -> Part {
        Part { dir: arguments.dir.clone(), start: 0, starts: 1, step_limit: None, stuck_at: None }
    }
}

impl Ended {
    pub(crate) fn print(&self) {
        println!("after step {}: loss {}", self.step, self.model.loss);
        for (colour, size) in self.model.colours.iter().zip(&self.model.sizes) {
            println!("{size:8} pixels of {:7.3} {:7.3} {:7.3}", colour[0], colour[1], colour[2]);
        }
    }
}

/// A line that is drawn ten times a second, in a service.
fn show_progress(session: &Session<Snapshot<Model>>, steps: u64) -> Result<(), Error> {
    let style = ProgressStyle::with_template("{bar:40} step {pos} of {len}, {per_sec}, loss {msg}")?;
    let bar = ProgressBar::new(steps).with_style(style).with_position(session.steps().get());
    let (counter, state) = (session.steps().clone(), session.state().clone());
    session.every("progress", Every::Skip(Duration::from_millis(100)), move || {
        bar.set_position(counter.get());
        bar.set_message(format!("{:.3}", state.update(|model| model.loss)));
        Ok(())
    });
    Ok(())
}

/// Does it, from its newest checkpoint on.
pub(crate) fn run(arguments: &Arguments, part: &Part) -> Result<Ended, Error> {
    let pixels = read(&arguments.picture)?;
    let initial = Model::initial(&pixels, arguments.colours as usize, part.start, part.starts);
    let supervisor = Supervisor::builder(Snapshot::new(SCHEMA, Model::default()))
        .dir(&part.dir)
        .coordinator(&Coordinator::builder().stop_on_signals().build()?)
        .init(move |model| {
            model.set(initial.clone());
            Ok(())
        })
        .save_every(Duration::from_millis(arguments.save_every))
        .summarise_every(Duration::from_millis(500))
        .count_steps_every(Duration::from_millis(500))
        .summary(|model| {
            let model = model.get();
            let sizes: Vec<f64> = model.sizes.iter().map(|size| *size as f64).collect();
            Ok(Summary::new().scalar("loss", model.loss).histogram("pixels of a colour", &sizes))
        })
        .build();

    let ended = supervisor.run(|session| {
        match session.restored_from() {
            Some(checkpoint) => eprintln!("goes on at step {}", checkpoint.step),
            None => eprintln!("begins"),
        }
        // A checkpoint of another job is not gone on with.
        let colours = session.state().update(|model| model.colours.len());
        if colours != arguments.colours as usize {
            return Err(Error::other(format!(
                "{} has a job with {colours} colours: go on with --colours {colours}, or begin in another --dir",
                part.dir.display()
            )));
        }
        // Several lines would draw over each other.
        if part.start == 0 {
            show_progress(session, arguments.steps)?;
        }
        while session.steps().get() < arguments.steps {
            session.check_stop()?;
            let _timer = match part.step_limit {
                Some(limit) => Some(expires(limit)?),
                None => None,
            };
            let colours = session.state().update(|model| model.colours.clone());
            let found = Found::of_all(&colours, &pixels, arguments.block as usize)?;
            session.step(|model| model.update(|model| model.step(found, pixels.len())))?;
            let step = session.steps().get();
            if arguments.crash_at == Some(step) {
                eprintln!("crashes after step {step}, as asked for");
                std::process::abort();
            }
            if part.stuck_at == Some(step) {
                eprintln!("hangs after step {step}, as asked for");
                loop {
                    std::thread::park();
                }
            }
        }
        Ok(())
    })?;
    Ok(Ended {
        is_complete: ended.is_some(),
        step: supervisor.steps().get(),
        model: supervisor.state().get(),
    })
}

//! The table of workers, which is written anew on stderr five times a second, if that is a terminal.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::time::Duration;

use forebear::{Request, try_spawn};
use forebear_cluster::ClusterCoordinator;

const PERIOD: Duration = Duration::from_millis(200);

pub(crate) struct Table(Option<Request<()>>);

impl Table {
    /// Shows the workers until [`end`](Self::end).
    pub(crate) fn show(cluster: &ClusterCoordinator) -> Table {
        if !io::stderr().is_terminal() {
            return Table(None);
        }
        let cluster = cluster.clone();
        Table(Some(try_spawn(move || {
            let mut lines = 0;
            loop {
                let table = table(&cluster);
                // Up to where the last one began, and everything below is erased.
                let up = if lines > 0 { format!("\x1b[{lines}A") } else { String::new() };
                io::stderr().write_all(format!("{up}\x1b[J{table}").as_bytes())?;
                lines = table.lines().count();
                forebear::time::sleep(PERIOD)?;
            }
        })))
    }

    pub(crate) fn end(self) {
        if let Some(request) = self.0 {
            request.cancel();
            let _ = request.wait();
        }
    }
}

fn table(cluster: &ClusterCoordinator) -> String {
    let metrics = cluster.metrics();
    let mut text = format!(
        "{} tasks done, {} running, {} queued, {} run again\n",
        metrics.done, metrics.running, metrics.queued, metrics.returned
    );
    for worker in cluster.workers() {
        let (state, tasks) = (format!("{:?}", worker.state), "#".repeat(worker.running));
        let _ = writeln!(text, "  {:<24} {state:<9} {tasks}", worker.id.to_string());
    }
    text
}

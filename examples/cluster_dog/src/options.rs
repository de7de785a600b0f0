//! The arguments.

use std::path::PathBuf;

#[cfg(feature = "nats")]
use anyhow::Context;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

/// Smooth a picture at two scales on a cluster, and write the difference.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Options {
    /// PNG file to write.
    #[arg(short, long, value_name = "FILE", default_value = "cluster_dog.png")]
    pub(crate) output: PathBuf,
    /// Worker processes on this machine. 0 if all are elsewhere, which needs --nats.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) workers: usize,
    /// Tile the picture so often in both directions, to make the work last.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) scale: u32,
    /// Edge of a block in pixels.
    #[arg(long, value_name = "PIXELS", default_value_t = 288, value_parser = block)]
    pub(crate) block: usize,
    /// Kill the worker that has made the block, with signal 9, when so many blocks are done; if it has died already, that of the next block. The workers
    /// are processes of this machine.
    #[arg(long, value_name = "BLOCKS", value_delimiter = ',')]
    pub(crate) kill_at: Vec<usize>,
    /// Carry the tasks by this nats-server.
    #[arg(long, value_name = "URL")]
    pub(crate) nats: Option<String>,
    /// The name of the job on the server.
    #[arg(long, value_name = "NAME", default_value = "cluster_dog", requires = "nats")]
    pub(crate) job: String,
    /// The file with the credentials for the server.
    #[arg(long, value_name = "FILE", requires = "nats")]
    pub(crate) credentials: Option<PathBuf>,
    /// The file with the token for the server.
    #[arg(long, value_name = "FILE", requires = "nats")]
    pub(crate) token_file: Option<PathBuf>,
    /// The file with the certificate that has signed the server's.
    #[arg(long, value_name = "FILE", requires = "nats")]
    pub(crate) authority: Option<PathBuf>,
    /// Be a worker of a job that another machine coordinates.
    #[arg(long, requires = "nats")]
    pub(crate) worker: bool,
}

fn block(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(pixels @ 8..=65_536) => Ok(pixels),
        _ => Err("must be a whole number from 8 to 65536".into()),
    }
}

impl Options {
    /// The program's arguments. It ends with a message if they are wrong.
    pub(crate) fn checked() -> Options {
        let options = Options::parse();
        let wrong = match (options.workers, &options.nats) {
            (0, None) => {
                "--workers 0 leaves nobody who runs the tasks: ask for at least 1, or for workers elsewhere by --nats"
            }
            (0, Some(_)) if !options.kill_at.is_empty() => {
                "--kill-at kills workers of this machine, and --workers 0 says that there are none"
            }
            _ => return options,
        };
        Options::command().error(ErrorKind::ValueValidation, wrong).exit()
    }

    /// What to say about `--nats` in a program that was built without it.
    pub(crate) fn without_nats(&self) -> &'static str {
        if cfg!(feature = "nats") { "" } else { ": build with --features nats" }
    }
}

#[cfg(feature = "nats")]
impl Options {
    fn token(&self) -> anyhow::Result<Option<String>> {
        let Some(file) = &self.token_file else { return Ok(None) };
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("the token cannot be read from {}", file.display()))?;
        Ok(Some(text.trim().to_owned()))
    }

    /// The engine of the coordinator.
    pub(crate) fn engine(&self) -> anyhow::Result<Option<forebear_cluster_nats::Nats>> {
        let Some(url) = &self.nats else { return Ok(None) };
        let mut engine = forebear_cluster_nats::Nats::new(url, &self.job).workers(self.workers);
        if let Some(file) = &self.credentials {
            engine = engine.credentials(file);
        }
        if let Some(token) = self.token()? {
            engine = engine.token(&token);
        }
        if let Some(file) = &self.authority {
            engine = engine.tls(file);
        }
        Ok(Some(engine))
    }

    /// A worker of a coordinator elsewhere.
    pub(crate) fn remote_worker(
        &self,
    ) -> anyhow::Result<Option<forebear_cluster_nats::worker::WorkerOptions>> {
        let Some(url) = &self.nats else { return Ok(None) };
        let mut worker = forebear_cluster_nats::worker::WorkerOptions::new(url, &self.job);
        if let Some(file) = &self.credentials {
            worker = worker.credentials(file);
        }
        if let Some(token) = self.token()? {
            worker = worker.token(&token);
        }
        if let Some(file) = &self.authority {
            worker = worker.tls(file);
        }
        Ok(Some(worker))
    }
}

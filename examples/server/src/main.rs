//! A web server whose handlers compute in requests, and a load test of it over the loopback.
//!
//! ```text
//! cargo run --release -p server                             # the load test
//! cargo run --release -p server -- --listen 127.0.0.1:8080  # serves until Ctrl-C
//! ```
//!
//! axum and tokio own the sockets. A handler makes a request, which computes on forebear's workers, and awaits it. When the client disconnects, axum drops
//! the handler's future. That drops the request's future, which cancels the request: the computation ends at its next check.
//!
//! Exit codes: 0 done, 1 it could not be done (stderr says why), 2 the arguments are wrong.
//!
//! The load test sends many queries over many connections at once, and checks each answer. Then it sends queries that would take for ever, and disconnects.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use forebear::prelude::*;
use forebear::{check_cancelled, try_join};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What the server counts.
#[derive(Default)]
struct Counts {
    /// Handlers that have been called.
    asked: AtomicUsize,
    /// Computations that ended as cancelled.
    cancelled: AtomicUsize,
    /// Whether each cancelled computation is printed.
    prints: bool,
}

/// Some arithmetic by halves. Each half first checks for a cancel.
fn sum_of_squares(from: u64, to: u64) -> Result<u64, forebear::Error> {
    const GRAIN: u64 = 10_000;
    // Before each split: a join runs both of its arms.
    check_cancelled()?;
    if to - from <= GRAIN {
        return Ok((from..to).fold(0, |sum, n| sum.wrapping_add(n.wrapping_mul(n))));
    }
    let middle = from + (to - from) / 2;
    let (low, high) = try_join(|| sum_of_squares(from, middle), || sum_of_squares(middle, to))?;
    Ok(low.wrapping_add(high))
}

/// `GET /sum/N`: the squares below N.
async fn sum(State(counts): State<Arc<Counts>>, Path(n): Path<u64>) -> Result<String, (StatusCode, String)> {
    let request = Request::builder().name(format!("sum {n}")).try_build(move || sum_of_squares(0, n));
    counts.asked.fetch_add(1, Ordering::Relaxed);
    request.on_cancelled(move || {
        counts.cancelled.fetch_add(1, Ordering::Relaxed);
        if counts.prints {
            println!("sum {n}: cancelled");
        }
    });
    let sum = request.await.map_err(|why| (StatusCode::INTERNAL_SERVER_ERROR, why.to_string()))?;
    Ok(sum.to_string())
}

/// Sends a query over a kept connection. Answers the status and the body.
async fn ask(client: &mut TcpStream, path: &str) -> std::io::Result<(u16, String)> {
    client.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    loop {
        let mut buffer = [0; 1024];
        let n = client.read(&mut buffer).await?;
        if n == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        answer.extend_from_slice(&buffer[..n]);
        let text = String::from_utf8_lossy(&answer);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let len =
            head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if body.len() >= len.unwrap_or(0) {
            let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
            return Ok((status.ok_or(std::io::ErrorKind::InvalidData)?, body.to_owned()));
        }
    }
}

const CLIENTS: u64 = 50;
const EACH: u64 = 40;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let address = match args.as_slice() {
        [] => None,
        [flag, address] if flag == "--listen" => Some(address.as_str()),
        _ => {
            eprintln!("usage: server [--listen ADDRESS:PORT]");
            return ExitCode::from(2);
        }
    };
    match run(address) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(address: Option<&str>) -> Result<(), Box<dyn std::error::Error>> {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    match address {
        None => tokio.block_on(load_test()),
        Some(address) => tokio.block_on(listen(address)),
    }
}

fn router(counts: &Arc<Counts>) -> Router {
    Router::new().route("/sum/{n}", get(sum)).with_state(Arc::clone(counts))
}

/// Serves at this address until Ctrl-C, and prints each computation that is cancelled.
async fn listen(address: &str) -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind(address).await.map_err(|error| format!("{address}: {error}"))?;
    println!("listening on http://{}/sum/N", listener.local_addr()?);
    let counts = Arc::new(Counts { prints: true, ..Counts::default() });
    tokio::select! {
        served = axum::serve(listener, router(&counts)) => served?,
        pressed = tokio::signal::ctrl_c() => pressed?,
    }
    Ok(())
}

async fn load_test() -> Result<(), Box<dyn std::error::Error>> {
    let counts = Arc::<Counts>::default();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let app = router(&counts);
    let server = tokio::spawn(async move { axum::serve(listener, app).await });

    // Load: all clients at once, each over one connection.
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            tokio::spawn(async move {
                let mut connection = TcpStream::connect(address).await?;
                for round in 0..EACH {
                    let n = client * 997 + round * 101;
                    let answer = ask(&mut connection, &format!("/sum/{n}")).await?;
                    let expected = (0..n).fold(0, |sum: u64, n| sum.wrapping_add(n.wrapping_mul(n)));
                    assert_eq!(answer, (200, expected.to_string()));
                }
                std::io::Result::Ok(())
            })
        })
        .collect();
    for client in clients {
        client.await??;
    }
    println!("{} answers, all of them right", CLIENTS * EACH);
    assert_eq!(counts.cancelled.load(Ordering::Relaxed), 0);

    // Clients that disconnect.
    let endless = format!("GET /sum/{} HTTP/1.1\r\nhost: localhost\r\n\r\n", u64::MAX);
    let mut connections = Vec::new();
    for _ in 0..CLIENTS {
        let mut connection = TcpStream::connect(address).await?;
        connection.write_all(endless.as_bytes()).await?;
        connections.push(connection);
    }
    // As many compute as there are workers; the others are queued.
    until(|| counts.asked.load(Ordering::Relaxed) == (CLIENTS * EACH + CLIENTS) as usize).await;
    drop(connections);
    until(|| counts.cancelled.load(Ordering::Relaxed) == CLIENTS as usize).await;
    println!("{CLIENTS} clients disconnected, and their requests were cancelled");

    // The server still answers, good queries and bad ones.
    let mut connection = TcpStream::connect(address).await?;
    for (path, status) in [("/sum/four", 400), ("/sum/-4", 400), ("/difference/4", 404)] {
        assert_eq!(ask(&mut connection, path).await?.0, status, "{path}");
    }
    assert_eq!(ask(&mut connection, "/sum/4").await?, (200, "14".to_owned()));
    server.abort();
    Ok(())
}

async fn until(so: impl Fn() -> bool) {
    while !so() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

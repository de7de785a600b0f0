//! Three servers on this machine, each of which keeps all messages.

use std::net::TcpListener;
use std::time::Duration;

use super::{Server, token, until};

pub(crate) fn three() -> [Server; 3] {
    // Nobody else takes these ports so soon.
    let free = [(); 3].map(|()| TcpListener::bind(("127.0.0.1", 0)).unwrap());
    let ports = free.each_ref().map(|listener| listener.local_addr().unwrap().port());
    drop(free);
    let routes: Vec<String> = ports.iter().map(|port| format!("\"nats://127.0.0.1:{port}\"")).collect();
    [0, 1, 2].map(|n| {
        let access = format!(
            "server_name: server-{n}\ncluster {{ name: three, listen: \"127.0.0.1:{}\", routes: [{}] }}\nauthorization {{ token: \"{}\" }}",
            ports[n],
            routes.join(", "),
            token(),
        );
        Server::start_as(tempfile::tempdir().unwrap(), access)
    })
}

/// Waits until each server has all that a stream of the job has.
pub(crate) fn await_replicas(url: &str, job: &str) {
    until(|| are_current(url, job));
}

/// Whether each server has all that a stream of the job has.
pub(crate) fn are_current(url: &str, job: &str) -> bool {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let are_current = async || -> Option<bool> {
        let client =
            async_nats::ConnectOptions::with_token(token()).connect(url.split(',').collect::<Vec<_>>());
        let context = async_nats::jetstream::new(client.await.ok()?);
        for stream in ["TASKS", "RESULTS"].map(|end| format!("FB_{job}_{end}")) {
            let info = context.get_stream(stream).await.ok()?.get_info().await.ok()?;
            let cluster = info.cluster?;
            if cluster.leader.is_none()
                || cluster.replicas.len() != 2
                || cluster.replicas.iter().any(|one| !one.current)
            {
                return None;
            }
        }
        Some(true)
    };
    let waited = async { tokio::time::timeout(Duration::from_secs(2), are_current()).await };
    tokio.block_on(waited) == Ok(Some(true))
}

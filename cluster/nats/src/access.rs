//! [`Access`]: which server, and as whom.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::{ConnectError, ConnectErrorKind, ConnectOptions, ServerAddr};
use serde::{Deserialize, Serialize};

use crate::store::PAUSE;
use crate::wire::INLINE;

/// One try to connect takes so long at most, if not told otherwise.
pub(crate) const ONE_TRY: Duration = Duration::from_secs(5);

/// So many bytes a message of the engine may have: a value that is no object yet, and what is said of it.
const MESSAGE: usize = 2 * INLINE;

/// Which server, and as whom.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Access {
    pub(crate) urls: Vec<String>,
    pub(crate) who: Who,
    pub(crate) tls: Option<Tls>,
    /// Without credentials, beyond loopback too.
    pub(crate) open: bool,
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum Who {
    Nobody,
    Token(String),
    User {
        name: String,
        password: String,
    },
    /// The path of a file with a JWT and a key.
    File(PathBuf),
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Tls {
    /// The file with the certificate that has signed the server's.
    pub(crate) authority: PathBuf,
    /// The files with the own certificate and its key.
    pub(crate) own: Option<(PathBuf, PathBuf)>,
}

impl Access {
    pub(crate) fn new(urls: &str) -> Access {
        let urls = urls.split(',').map(|url| url.trim().to_owned()).filter(|url| !url.is_empty()).collect();
        Access { urls, who: Who::Nobody, tls: None, open: false }
    }

    /// Why this is not tried.
    fn check(&self) -> Result<Vec<ServerAddr>, String> {
        if self.urls.is_empty() {
            return Err(
                "no server is named: give the address of one, or of several with commas between".into()
            );
        }
        let parse = |url: &String| {
            url.parse::<ServerAddr>()
                .map_err(|error| format!("the address `{}`: {error}", without_secrets(url)))
        };
        let servers: Vec<ServerAddr> = self.urls.iter().map(parse).collect::<Result<_, _>>()?;
        let bare = |server: &&ServerAddr| {
            let loopback =
                server.host().parse::<IpAddr>().map_or(server.host() == "localhost", |ip| ip.is_loopback());
            !loopback && !server.has_user_pass()
        };
        if let (Who::Nobody, false, Some(server)) = (&self.who, self.open, servers.iter().find(bare)) {
            return Err(format!(
                "`{}` is another machine, and there are no credentials: give `token`, `user` or `credentials`, or say `without_authentication`",
                server.host()
            ));
        }
        Ok(servers)
    }

    /// The servers, without what is secret.
    fn places(&self) -> String {
        self.urls.iter().map(|url| without_secrets(url)).collect::<Vec<_>>().join(", ")
    }

    /// Connects. A server that is not there yet, or does not answer, is tried again until `patience` is over. One try takes `one_try` at most. The first one may take all of that, a later one what is left
    /// of the patience.
    pub(crate) async fn connect(
        &self,
        patience: Duration,
        one_try: Duration,
        on_event: impl Fn(async_nats::Event) + Send + Sync + 'static,
    ) -> Result<async_nats::Client, String> {
        let servers = self.check()?;
        let (begun, on_event) = (Instant::now(), Arc::new(on_event));
        // Why the newest try has failed that had all its time.
        let mut failed: Option<String> = None;
        let client = loop {
            let options = self.options(one_try, on_event.clone())?;
            let left = patience.saturating_sub(begun.elapsed());
            let limit = if failed.is_none() { one_try } else { one_try.min(left) };
            // The limit of the client itself is for each of its steps.
            let tried = tokio::time::timeout(limit, options.connect(servers.clone())).await;
            let again = begun.elapsed().saturating_add(PAUSE) < patience;
            let (why, pause) = match tried {
                Ok(Ok(client)) => break client,
                Ok(Err(error)) => {
                    let why = format!("no connection to {}: {error}", self.places());
                    if !may_come(&error) {
                        return Err(why);
                    }
                    (why, PAUSE)
                }
                Err(_) => {
                    let why = format!("no answer from {} in {limit:?}", self.places());
                    // A try that was cut short says less than the one before it.
                    (failed.filter(|_| limit < one_try).unwrap_or(why), Duration::ZERO)
                }
            };
            if !again {
                return Err(why);
            }
            tokio::time::sleep(pause).await;
            failed = Some(why);
        };
        match client.server_info().max_payload {
            most if most < MESSAGE => Err(format!(
                "{} takes messages of {most} bytes, and this needs {MESSAGE}: raise its `max_payload`",
                self.places()
            )),
            _ => Ok(client),
        }
    }

    fn options(
        &self,
        timeout: Duration,
        on_event: Arc<impl Fn(async_nats::Event) + Send + Sync + 'static>,
    ) -> Result<ConnectOptions, String> {
        let mut options = ConnectOptions::new();
        options = match &self.who {
            Who::Nobody => options,
            Who::Token(token) => options.token(token.clone()),
            Who::User { name, password } => options.user_and_password(name.clone(), password.clone()),
            Who::File(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| format!("the credentials {}: {error}", path.display()))?;
                options
                    .credentials(&text)
                    .map_err(|error| format!("the credentials {}: {error}", path.display()))?
            }
        };
        if let Some(tls) = &self.tls {
            options = options.require_tls(true).add_root_certificates(tls.authority.clone());
            if let Some((certificate, key)) = &tls.own {
                options = options.add_client_certificate(certificate.clone(), key.clone());
            }
        }
        Ok(options
            .name("forebear-cluster")
            // A server may name others, which nobody has said may be trusted, and which may be beyond loopback.
            .ignore_discovered_servers()
            .connection_timeout(timeout)
            .subscription_capacity(1 << 16)
            .ping_interval(Duration::from_secs(2))
            .reconnect_delay_callback(|tries| Duration::from_millis((10 << tries.min(5)) as u64))
            .event_callback(move |event| {
                on_event(event);
                std::future::ready(())
            }))
    }
}

/// Whether another try may succeed a moment later. A server that rejects the user, or does not speak TLS, will do so again.
fn may_come(error: &ConnectError) -> bool {
    matches!(error.kind(), ConnectErrorKind::Io | ConnectErrorKind::TimedOut | ConnectErrorKind::Dns)
}

/// An address, without the user and the password that it may have.
fn without_secrets(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    if scheme.is_empty() { place.to_owned() } else { format!("{scheme}://{place}") }
}

/// Secrets are not shown.
impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = match &self.who {
            Who::Nobody => "nobody",
            Who::Token(_) => "a token",
            Who::User { name, .. } => name,
            Who::File(_) => "a file",
        };
        f.debug_struct("Access")
            .field("servers", &self.urls.len())
            .field("who", &who)
            .field("tls", &self.tls.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_machine_is_not_connected_to_without_credentials() {
        for bare in ["nats://192.0.2.1:4222", "nats://example.org", "nats://127.0.0.1,nats://192.0.2.1"] {
            assert!(Access::new(bare).check().is_err_and(|why| why.contains("no credentials")), "{bare}");
        }
        for fine in
            ["nats://127.0.0.1:4222", "localhost", "nats://[::1]:4222", "nats://me:secret@example.org"]
        {
            assert!(Access::new(fine).check().is_ok(), "{fine}");
        }
        let token = Access { who: Who::Token("t".into()), ..Access::new("nats://example.org") };
        assert!(token.check().is_ok());
        assert!(Access { open: true, ..Access::new("nats://example.org") }.check().is_ok());
    }

    #[test]
    fn no_server_is_an_error_that_says_so_and_a_comma_too_many_is_none() {
        for none in ["", " ", ",", " , "] {
            assert!(
                Access::new(none).check().is_err_and(|why| why.contains("no server is named")),
                "{none:?}"
            );
        }
        assert_eq!(Access::new("nats://127.0.0.1:4222,").check().unwrap().len(), 1);
    }

    #[test]
    fn no_message_has_a_password() {
        for (url, place) in [
            ("nats://me:hidden@127.0.0.1:4222", "nats://127.0.0.1:4222"),
            ("nats://hidden@example.org", "nats://example.org"),
            ("me:hid@hidden@host", "host"),
            ("nats://127.0.0.1", "nats://127.0.0.1"),
            ("localhost:1", "localhost:1"),
        ] {
            assert_eq!(without_secrets(url), place);
        }
        let wrong = Access::new("nats://me:hidden@127.0.0.1:port").check().unwrap_err();
        assert!(!wrong.contains("hidden"), "{wrong}");
        assert!(!Access::new("nats://me:hidden@a,nats://b").places().contains("hidden"));
    }

    /// A server says in its first message which others there are. Here the one that is named breaks each connection, and the other is where nobody has said that it may be trusted.
    #[test]
    fn no_server_is_connected_to_that_was_not_named() {
        use std::io::Write;
        use std::net::TcpListener;

        let [named, other] = std::array::from_fn(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let [at, elsewhere] = [&named, &other].map(|listener| listener.local_addr().unwrap());
        let connects = move |access: Access| {
            let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let client = tokio.block_on(access.connect(Duration::from_secs(1_000), ONE_TRY, |_| ())).unwrap();
            // It connects again and again, for as long as the client is there.
            tokio.block_on(std::future::pending::<()>());
            drop(client);
        };
        let access = Access::new(&format!("nats://{at}"));
        std::thread::spawn(move || connects(access));
        for _ in 0..20 {
            let (mut client, _) = named.accept().unwrap();
            let info = format!(
                "INFO {{\"server_id\":\"a\",\"version\":\"2.9.10\",\"max_payload\":1048576,\"headers\":true,\"connect_urls\":[\"{elsewhere}\"]}}\r\nPONG\r\n"
            );
            client.write_all(info.as_bytes()).unwrap();
        }
        other.set_nonblocking(true).unwrap();
        assert_eq!(other.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }

    /// The first connection is closed at once, and what comes after that is never answered.
    #[test]
    fn the_last_try_to_connect_ends_with_the_patience_and_the_error_names_the_cause_that_was_seen() {
        use std::net::TcpListener;

        const LONG: Duration = Duration::from_secs(20);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let access = Access::new(&format!("nats://{}", listener.local_addr().unwrap()));
        let closes = std::thread::spawn(move || {
            drop(listener.accept().unwrap());
            listener
        });
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let begun = Instant::now();
        let tried = tokio.block_on(access.connect(Duration::from_millis(300), LONG, |_| ()));
        assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
        assert!(tried.is_err_and(|why| why.contains("no connection to")));
        drop(closes.join().unwrap());
    }

    #[test]
    fn secrets_are_not_shown() {
        let access = Access { who: Who::Token("hidden".into()), ..Access::new("nats://u:hidden@127.0.0.1") };
        assert!(!format!("{access:?}").contains("hidden"));
    }
}

//! [`Access`]: which server, and as whom.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use async_nats::{ConnectOptions, ServerAddr};
use serde::{Deserialize, Serialize};

use crate::wire::INLINE;

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
        let urls = urls.split(',').map(|url| url.trim().to_owned()).collect();
        Access { urls, who: Who::Nobody, tls: None, open: false }
    }

    /// Why this is not tried.
    fn check(&self) -> Result<Vec<ServerAddr>, String> {
        let parse =
            |url: &String| url.parse::<ServerAddr>().map_err(|error| format!("the address `{url}`: {error}"));
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

    pub(crate) async fn connect(
        &self,
        timeout: Duration,
        on_event: impl Fn(async_nats::Event) + Send + Sync + 'static,
    ) -> Result<async_nats::Client, String> {
        let servers = self.check()?;
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
        options = options
            .name("forebear-cluster")
            .connection_timeout(timeout)
            .subscription_capacity(1 << 16)
            .ping_interval(Duration::from_secs(2))
            .reconnect_delay_callback(|tries| Duration::from_millis((10 << tries.min(5)) as u64))
            .event_callback(move |event| {
                on_event(event);
                std::future::ready(())
            });
        match tokio::time::timeout(timeout * 2, options.connect(servers)).await {
            Ok(Ok(client)) => match client.server_info().max_payload {
                most if most < MESSAGE => Err(format!(
                    "{} takes messages of {most} bytes, and this needs {MESSAGE}: raise its `max_payload`",
                    self.urls.join(", ")
                )),
                _ => Ok(client),
            },
            Ok(Err(error)) => Err(format!("no connection to {}: {error}", self.urls.join(", "))),
            Err(_) => Err(format!("no answer from {}", self.urls.join(", "))),
        }
    }
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
    fn secrets_are_not_shown() {
        let access = Access { who: Who::Token("hidden".into()), ..Access::new("nats://u:hidden@127.0.0.1") };
        assert!(!format!("{access:?}").contains("hidden"));
    }
}

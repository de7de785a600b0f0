//! Files with credentials, and accounts: an operator, two accounts and their users, whose keys and tokens this makes itself. `ci/nats` runs it; without a server each test is ignored, by name.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use forebear_cluster::engine::WorkerState;
use forebear_cluster::{ClusterCoordinator, ClusterError, TaskFn, Tasks, tasks};
use forebear_cluster_nats::{Nats, worker};
use nkeys::KeyPair;

use crate::support::process::Process;
use crate::support::{Server, job, until};

const WHERE: TaskFn<(), String> = TaskFn::new("where", |ctx, ()| Ok(ctx.worker().name().to_owned()));
/// A result that is too large for a message.
const LARGE: TaskFn<usize, Vec<u8>> = TaskFn::new("large", |_, size| Ok(vec![7; size]));

fn known() -> Tasks {
    tasks![WHERE, LARGE]
}

#[test]
fn worker_process() {
    worker::entry(known());
}

#[test]
fn lone_worker() {
    support::process::lone_worker(known());
}

/// A token that says this of `subject`, signed by `issuer`.
fn token(issuer: &KeyPair, subject: &KeyPair, name: &str, nats: &str) -> String {
    let head = URL_SAFE_NO_PAD.encode(r#"{"typ":"JWT","alg":"ed25519-nkey"}"#);
    let body = format!(
        r#"{{"jti":"{name}","iat":1700000000,"iss":"{}","name":"{name}","sub":"{}","nats":{nats}}}"#,
        issuer.public_key(),
        subject.public_key(),
    );
    let signed = format!("{head}.{}", URL_SAFE_NO_PAD.encode(body));
    let signature = issuer.sign(signed.as_bytes()).unwrap();
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// An account, and its token.
struct Account(KeyPair, String);

impl Account {
    fn new(operator: &KeyPair, name: &str) -> Account {
        let keys = KeyPair::new_account();
        // The servers' own account must not have streams.
        let streams = match name {
            "system" => "",
            _ => r#","mem_storage":-1,"disk_storage":-1,"streams":-1,"consumer":-1"#,
        };
        let limits = r#""subs":-1,"data":-1,"payload":-1,"imports":-1,"exports":-1,"wildcards":true,"conn":-1,"leaf":-1"#;
        let nats = format!(r#"{{"limits":{{{limits}{streams}}},"type":"account","version":2}}"#);
        let token = token(operator, &keys, name, &nats);
        Account(keys, token)
    }

    /// Writes the credentials of a user of this account that may publish and subscribe to this.
    fn user(&self, dir: &Path, name: &str, publish: &str, subscribe: &str) -> PathBuf {
        let keys = KeyPair::new_user();
        let nats = format!(
            r#"{{"pub":{{{publish}}},"sub":{{{subscribe}}},"subs":-1,"data":-1,"payload":-1,"type":"user","version":2}}"#
        );
        let (token, seed) = (token(&self.0, &keys, name, &nats), keys.seed().unwrap());
        let file = dir.join(format!("{name}.creds"));
        let text = format!(
            "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        );
        fs::write(&file, text).unwrap();
        file
    }
}

fn engine(server: &Server, job: &str, credentials: &Path) -> Nats {
    Nats::new(&server.url(), job)
        .credentials(credentials)
        .lease(Duration::from_secs(60))
        .connect_timeout(Duration::from_secs(2))
        .args(["worker_process", "--exact", "--nocapture"])
}

fn start(engine: Nats) -> Result<ClusterCoordinator, ClusterError> {
    ClusterCoordinator::builder(engine).tasks(known()).min_workers(0).start()
}

/// An operator, and three accounts.
fn accounts() -> (KeyPair, Account, Account, Account) {
    let operator = KeyPair::new_operator();
    let [ours, theirs, unknown] = ["ours", "theirs", "unknown"].map(|name| Account::new(&operator, name));
    (operator, ours, theirs, unknown)
}

/// A server that knows these accounts.
fn server(operator: &KeyPair, accounts: &[&Account]) -> Server {
    let system = Account::new(operator, "system");
    let preload: Vec<String> = (accounts.iter().copied().chain([&system]))
        .map(|Account(keys, token)| format!("{}: \"{token}\"", keys.public_key()))
        .collect();
    let access = format!(
        "operator: \"{}\"\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{ {} }}",
        token(operator, operator, "operator", r#"{"type":"operator","version":2}"#),
        system.0.public_key(),
        preload.join(", "),
    );
    Server::start_as(tempfile::tempdir().unwrap(), access)
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn by_files_with_credentials_each_account_has_its_own_jobs_and_others_start_nothing() {
    let files = tempfile::tempdir().unwrap();
    let (operator, ours, theirs, unknown) = accounts();
    let server = server(&operator, &[&ours, &theirs]);
    let (job, files) = (job(), files.path());
    let [mine, other, strange] = [(&ours, "mine"), (&theirs, "other"), (&unknown, "strange")]
        .map(|(account, name)| account.user(files, name, "", ""));
    // A job of that name in each account; neither sees the other.
    let [here, there] = [&mine, &other].map(|file| start(engine(&server, &job, file)).unwrap());
    // A worker needs no more than the documentation says.
    let publish = format!(r#""allow":["fb.{job}.>","$JS.>","$O.>"]"#);
    let subscribe = format!(r#""allow":["fb.{job}.>","_INBOX.>"]"#);
    let least = ours.user(files, "least", &publish, &subscribe);
    let url = server.url();
    let worker = |file: &Path, name: &str| {
        let settings =
            [("URL", &*url), ("JOB", &*job), ("NAME", name), ("CREDENTIALS", file.to_str().unwrap())];
        Process::start("lone_worker", &settings)
    };
    let _workers = [worker(&least, "a worker here"), worker(&other, "a worker there")];
    for (cluster, name) in [(&here, "a worker here"), (&there, "a worker there")] {
        let ready = |cluster: &ClusterCoordinator| {
            let workers = cluster.workers();
            !workers.is_empty() && workers.iter().all(|worker| worker.state == WorkerState::Ready)
        };
        until(|| ready(cluster));
        for _ in 0..10 {
            assert_eq!(cluster.schedule(&WHERE, ()).unwrap().fetch().unwrap(), name);
        }
        let large = cluster.schedule(&LARGE, 1 << 20).unwrap().fetch().unwrap();
        assert_eq!(large, vec![7; 1 << 20]);
        assert_eq!(cluster.workers().len(), 1);
        cluster.join().unwrap();
    }
    // Not of an account that the server knows, changed, no credentials at all, and a file that is none or is not there.
    let changed = files.join("changed.creds");
    let another_seed = KeyPair::new_user().seed().unwrap();
    let text = fs::read_to_string(&mine).unwrap();
    let seed = text.lines().find(|line| line.starts_with("SU")).unwrap();
    fs::write(&changed, text.replace(seed, &another_seed)).unwrap();
    let empty = files.join("empty.creds");
    fs::write(&empty, "nothing").unwrap();
    for file in [&strange, &changed, &empty, &files.join("missing")] {
        let refused = start(engine(&server, &job, file));
        assert!(matches!(refused, Err(ClusterError::Start { .. })), "{}: {refused:?}", file.display());
    }
    let bare = Nats::new(&url, &job).connect_timeout(Duration::from_secs(2));
    assert!(matches!(start(bare), Err(ClusterError::Start { .. })));
}

/// One may not take tasks, and one cannot hear that it has joined. Each ends with the server's words, and the job goes on with another one.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_worker_that_lacks_a_permission_ends_with_the_words_of_the_server() {
    let (operator, ours, ..) = accounts();
    let server = server(&operator, &[&ours]);
    let (job, files, url) = (job(), tempfile::tempdir().unwrap(), server.url());
    let mine = ours.user(files.path(), "mine", "", "");
    let cluster = start(engine(&server, &job, &mine)).unwrap();
    let value = cluster.schedule(&WHERE, ()).unwrap();
    let (fb, all) = (format!("fb.{job}.>"), format!(r#""allow":["fb.{job}.>","$JS.>","$O.>"]"#));
    let cases = [
        (
            "takes",
            format!(r#""allow":["{fb}","$O.>"]"#),
            format!(r#""allow":["{fb}","_INBOX.>"]"#),
            "MSG.NEXT",
        ),
        ("hears", all, format!(r#""allow":["{fb}"]"#), "Subscription to \"_INBOX."),
    ];
    for (name, publish, subscribe, words) in cases {
        let (file, said) = (ours.user(files.path(), name, &publish, &subscribe), files.path().join("said"));
        let mut worker = Process::start(
            "lone_worker",
            &[
                ("URL", &*url),
                ("JOB", &*job),
                ("NAME", name),
                ("CREDENTIALS", file.to_str().unwrap()),
                ("PATIENCE", "3"),
                ("ERROR", said.to_str().unwrap()),
            ],
        );
        worker.0.wait().unwrap();
        let error = fs::read_to_string(&said).unwrap();
        assert!(error.contains("Permissions Violation") && error.contains(words), "{error}");
    }
    let settings =
        [("URL", &*url), ("JOB", &*job), ("NAME", "mine"), ("CREDENTIALS", mine.to_str().unwrap())];
    let _worker = Process::start("lone_worker", &settings);
    assert_eq!(value.fetch().unwrap(), "mine");
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_coordinator_that_lacks_a_permission_does_not_start_and_says_what_the_server_says() {
    let (operator, ours, ..) = accounts();
    let server = server(&operator, &[&ours]);
    let (job, files) = (job(), tempfile::tempdir().unwrap());
    let subscribe = r#""allow":["fb.>","_INBOX.>"]"#;
    for (name, publish, words) in [
        ("locks", r#""allow":["fb.>","$JS.>","$O.>"]"#, ["the lock of the job", "Publish to \"$KV."]),
        ("makes", r#""allow":["fb.>","$O.>","$KV.>"]"#, ["timed out", "Publish to \"$JS.API."]),
    ] {
        let file = ours.user(files.path(), name, publish, subscribe);
        let engine = engine(&server, &job, &file).lease(Duration::from_millis(100));
        let Err(error) = start(engine.unavailable_after(Duration::from_millis(1))) else { panic!("{name}") };
        let error = error.to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

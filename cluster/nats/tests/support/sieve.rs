//! [`Sieve`]: stands between clients and a server, on loopback, and reads their protocol. It keeps messages of the server back, or loses messages of the clients, by their text.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::mem;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use super::port::Port;

/// Whether a message is meant, by its text.
type Choice = Box<dyn FnMut(&str) -> bool + Send>;

pub(crate) struct Sieve {
    port: Port,
    shared: Arc<Shared>,
}

struct Shared {
    server: u16,
    /// So many ways are open, two for each connection.
    ways: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Which messages to clients stay here.
    keeps: Option<Choice>,
    kept: Vec<(Arc<Mutex<TcpStream>>, Vec<u8>)>,
    /// Which messages of clients get lost.
    loses: Option<Choice>,
}

impl Sieve {
    /// Before the server that listens at this port of loopback. At first it forwards all.
    pub(crate) fn before(server: u16) -> Sieve {
        let shared = Arc::new(Shared { server, ways: AtomicUsize::new(0), state: Mutex::default() });
        let its = shared.clone();
        let port = Port::open(move |client| its.clone().serve(client));
        Sieve { port, shared }
    }

    pub(crate) fn url(&self) -> String {
        self.port.url()
    }

    /// Messages to clients stay here from now on that are chosen.
    pub(crate) fn keep(&self, choice: impl FnMut(&str) -> bool + Send + 'static) {
        self.shared.lock().keeps = Some(Box::new(choice));
    }

    /// All that have connected have gone.
    pub(crate) fn is_unused(&self) -> bool {
        self.shared.ways.load(Ordering::Acquire) == 0
    }

    /// So many have been kept.
    pub(crate) fn kept(&self) -> usize {
        self.shared.lock().kept.len()
    }

    /// What was kept goes on, behind all that was not. Nothing is kept any more.
    pub(crate) fn release(&self) {
        let mut state = self.shared.lock();
        state.keeps = None;
        for (to, message) in mem::take(&mut state.kept) {
            to.lock().unwrap().write_all(&message).unwrap();
        }
    }

    /// Messages of clients get lost from now on that are chosen.
    pub(crate) fn lose(&self, choice: impl FnMut(&str) -> bool + Send + 'static) {
        self.shared.lock().loses = Some(Box::new(choice));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn serve(self: Arc<Self>, client: TcpStream) {
        let server = TcpStream::connect(("127.0.0.1", self.server)).unwrap();
        for end in [&client, &server] {
            end.set_nodelay(true).unwrap();
        }
        let ways =
            [(client.try_clone().unwrap(), server.try_clone().unwrap(), false), (server, client, true)];
        for (from, to, is_answer) in ways {
            let its = self.clone();
            its.ways.fetch_add(1, Ordering::AcqRel);
            thread::spawn(move || {
                let (read, to) = (from.try_clone().unwrap(), Arc::new(Mutex::new(to)));
                // One end has gone.
                let _ = its.forward(BufReader::new(read), &to, is_answer);
                for end in [&from, &to.lock().unwrap()] {
                    let _ = end.shutdown(Shutdown::Both);
                }
                its.ways.fetch_sub(1, Ordering::AcqRel);
            });
        }
    }

    fn forward(&self, mut from: impl BufRead, to: &Arc<Mutex<TcpStream>>, is_answer: bool) -> io::Result<()> {
        while let Some(message) = next(&mut from)? {
            let text = String::from_utf8_lossy(&message);
            let mut state = self.lock();
            let choice = if is_answer { &mut state.keeps } else { &mut state.loses };
            if !choice.as_mut().is_some_and(|choice| choice(&text)) {
                drop(state);
                to.lock().unwrap().write_all(&message)?;
            } else if is_answer {
                state.kept.push((to.clone(), message));
            }
        }
        Ok(())
    }
}

/// The next line, with what follows it if it begins a message. Its last word is the length of that. `None`: there are no more.
fn next(from: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut message = Vec::new();
    if from.read_until(b'\n', &mut message)? == 0 {
        return Ok(None);
    }
    let head = String::from_utf8_lossy(&message);
    let mut words = head.split_ascii_whitespace();
    if let Some("MSG" | "HMSG" | "PUB" | "HPUB") = words.next() {
        let length = words.last().and_then(|word| word.parse::<u64>().ok()).expect("a message has a length");
        // With the end of its line.
        from.take(length + 2).read_to_end(&mut message)?;
    }
    Ok(Some(message))
}

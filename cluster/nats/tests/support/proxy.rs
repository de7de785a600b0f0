//! A network between clients and a server, on loopback: it forwards, is slow, forwards nothing, or cuts.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use forebear::time::sleep;

use super::port::Port;

/// What happens to bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Way {
    Open,
    /// Each piece is forwarded so much later.
    Slow(Duration),
    /// Connections stay, and new ones are accepted; nothing is forwarded.
    HalfOpen,
    /// Connections are cut, and new ones, too.
    Cut,
}

/// Stands between clients and a server.
pub(crate) struct Proxy {
    port: Port,
    shared: Arc<Shared>,
}

struct Shared {
    server: u16,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    way: Way,
    /// Both ends of each connection.
    ends: Vec<TcpStream>,
    /// So many connections were cut when they came.
    refused: usize,
}

impl Proxy {
    /// Before the server that listens at this port of loopback.
    pub(crate) fn before(server: u16) -> Proxy {
        let state = Mutex::new(State { way: Way::Open, ends: Vec::new(), refused: 0 });
        let shared = Arc::new(Shared { server, state, changed: Condvar::new() });
        let its = shared.clone();
        let port = Port::open(move |client| its.clone().serve(client));
        Proxy { port, shared }
    }

    pub(crate) fn url(&self) -> String {
        self.port.url()
    }

    pub(crate) fn set(&self, way: Way) {
        let mut state = self.shared.lock();
        state.way = way;
        if way == Way::Cut {
            state.cut();
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// So many connections were cut when they came.
    pub(crate) fn refused(&self) -> usize {
        self.shared.lock().refused
    }

    /// All connections are cut, once.
    pub(crate) fn cut(&self) {
        self.shared.lock().cut();
    }
}

impl State {
    fn cut(&mut self) {
        for end in self.ends.drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn serve(self: Arc<Self>, client: TcpStream) {
        let mut state = self.lock();
        if state.way == Way::Cut {
            state.refused += 1;
            return;
        }
        drop(state);
        // There may be no server now.
        let Ok(server) = TcpStream::connect(("127.0.0.1", self.server)) else { return };
        for end in [&client, &server] {
            let _ = end.set_nodelay(true);
            self.lock().ends.push(end.try_clone().unwrap());
        }
        for (from, to) in [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)] {
            let its = self.clone();
            thread::spawn(move || its.forward(from, to));
        }
    }

    fn forward(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut piece = vec![0; 64 << 10];
        loop {
            let read = from.read(&mut piece).unwrap_or(0);
            let halted = |state: &mut State| state.way == Way::HalfOpen;
            let state = self.changed.wait_while(self.lock(), halted).unwrap();
            let way = state.way;
            drop(state);
            if let Way::Slow(late) = way {
                sleep(late).unwrap();
            }
            if read == 0 || to.write_all(&piece[..read]).is_err() {
                let _ = to.shutdown(Shutdown::Both);
                let _ = from.shutdown(Shutdown::Both);
                return;
            }
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.set(Way::Cut);
    }
}

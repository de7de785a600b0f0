//! [`Port`]: what stands between clients and a server listens there, on loopback.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// It is listened at until this is dropped.
pub(crate) struct Port {
    number: u16,
    over: Arc<AtomicBool>,
}

impl Port {
    /// Each client that connects is given to `serve`, which does not wait.
    pub(crate) fn open(serve: impl Fn(TcpStream) + Send + 'static) -> Port {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let number = listener.local_addr().unwrap().port();
        let over = Arc::new(AtomicBool::new(false));
        let is_over = over.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                serve(client.unwrap());
            }
        });
        Port { number, over }
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.number)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // So that the listener looks.
        let _ = TcpStream::connect(("127.0.0.1", self.number));
    }
}

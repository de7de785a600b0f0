//! Peers that do not keep to the protocol: they are refused, told, and hold up nobody.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use forebear::timer::TimerError;
use forebear::timer::local::{LocalTimerClient, LocalTimerServer, Refusal};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    recvmsg, send, sendmsg, shutdown, socket_with,
};

use crate::worker::{Server, Told, WATCHDOG, Worker};

const WELCOME: [u8; 8] = *b"fbt\x01\x02\0\0\0";

/// A connection without a client.
fn line(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    set_socket_timeout(&socket, Timeout::Recv, Some(WATCHDOG)).unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

fn welcomed(path: &Path) -> OwnedFd {
    let socket = line(path);
    let mut answer = [0; 16];
    let (len, _) = recv(&socket, &mut answer, RecvFlags::empty()).unwrap();
    assert_eq!(answer[..len], WELCOME);
    socket
}

/// Says this, and reads why the line is closed.
#[track_caller]
fn is_refused(socket: &OwnedFd, words: &[u8]) {
    send(socket, words, SendFlags::NOSIGNAL).unwrap();
    is_closed(socket);
}

/// Reads until the line is closed.
#[track_caller]
fn is_closed(socket: &OwnedFd) {
    loop {
        match recv(socket, &mut [0; 16], RecvFlags::empty()) {
            Ok((0, _)) | Err(Errno::CONNRESET | Errno::PIPE) => return,
            Ok(_) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// An acquire with a deadline a long time from now, or a release.
fn message(scope: &str, deadline: i64) -> Vec<u8> {
    let mut message = b"fbt\x01\x01\0\0\0".to_vec();
    message.extend(deadline.to_le_bytes());
    message.extend([0; 8]);
    message.extend(scope.as_bytes());
    message
}

fn refused(why: &str) -> Told {
    Told::Refused(Some(std::process::id()), why.into())
}

/// After whatever was done, a stuck worker is killed.
fn still_works(server: &Server) {
    Worker::start("stuck", server).dies_by(libc::SIGKILL);
}

#[test]
fn garbage_of_any_size_is_refused() {
    let good = message("scope", i64::MAX);
    let mut other_version = good.clone();
    other_version[3] = 2;
    let mut no_text = good.clone();
    no_text[24] = 0xff;
    let bad: [&[u8]; 8] = [
        b"x",
        b"GET / HTTP/1.1\r\n\r\n",
        &good[..23],
        &other_version,
        &no_text,
        &[0xff; 512],
        &message(&"x".repeat(489), 1),
        &[0; 100_000],
    ];
    for words in bad {
        let mut server = Server::start();
        is_refused(&welcomed(server.handle.path()), words);
        server.expect(&refused("Malformed"));
        still_works(&server);
        let told = server.stop();
        assert!(!told.contains(&Told::Joined(std::process::id())), "{told:#?}");
    }
}

/// A connection, and the file for releases that cannot be sent.
fn with_file(path: &Path) -> (OwnedFd, File) {
    let socket = line(path);
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let mut answer = [0; 8];
    let into = &mut [IoSliceMut::new(&mut answer)];
    recvmsg(&socket, into, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    assert_eq!(answer, WELCOME);
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    (socket, file.unwrap().into())
}

/// A slot of that file.
fn slot(length: u32, after: u64, message: &[u8]) -> Vec<u8> {
    [&length.to_le_bytes()[..], &[0; 4], &after.to_le_bytes(), message].concat()
}

#[test]
fn garbage_in_the_file_for_releases_is_refused_and_its_size_stays() {
    let (release, acquire) = (message("scope", -1), message("scope", 1));
    let long = [&release[..], &[b'x'; 600]].concat();
    let bad = [
        slot(u32::MAX, 0, &release),
        slot(513, 0, &long),
        slot(23, 0, &release),
        slot(acquire.len() as u32, 0, &acquire),
        slot(release.len() as u32, 0, &[0xff; 64]),
        vec![0xff; 540_672],
    ];
    for garbage in bad {
        let mut server = Server::start();
        let (socket, file) = with_file(server.handle.path());
        file.write_all_at(&garbage, 0).unwrap();
        assert!(file.set_len(0).is_err() && file.set_len(1 << 30).is_err());
        assert!(file.write_all_at(b"x", 540_672).is_err());
        // It looks when it has heard something.
        is_refused(&socket, &message("scope", i64::MAX));
        server.expect(&refused("Malformed"));
        still_works(&server);
    }
}

#[test]
fn a_release_in_the_file_stops_what_was_acquired_before_it_and_nothing_else() {
    let server = Server::start();
    let (socket, file) = with_file(server.handle.path());
    let say = |scope, deadline| send(&socket, &message(scope, deadline), SendFlags::NOSIGNAL).unwrap();
    for scope in ["again", "again", "once"] {
        say(scope, i64::MAX);
    }
    server.counts(3);
    let release = message("again", -1);
    file.write_all_at(&slot(release.len() as u32, 1, &release), 0).unwrap();
    say("nothing", -1);
    server.counts(4);
    let release = message("once", -1);
    file.write_all_at(&slot(release.len() as u32, 4, &release), 528).unwrap();
    say("nothing", -1);
    server.counts(6);
    server.handle.stop().unwrap();
    assert_eq!(server.handle.stats().requests, 6);
}

#[test]
fn a_file_full_of_releases_of_nothing_holds_up_nobody() {
    let mut server = Server::start();
    let (socket, file) = with_file(server.handle.path());
    let release = message("nothing", -1);
    for after in [0, u64::MAX] {
        for place in 0..1024 {
            file.write_all_at(&slot(release.len() as u32, after, &release), place * 528).unwrap();
        }
        send(&socket, &message("scope", i64::MAX), SendFlags::NOSIGNAL).unwrap();
        still_works(&server);
    }
    drop(socket);
    server.expect(&Told::Closed(std::process::id()));
    let told = server.stop();
    assert!(!told.iter().any(|told| matches!(told, Told::Refused(..))), "{told:#?}");
}

#[test]
fn an_empty_message_is_no_end_of_the_line_and_refused_too() {
    let mut server = Server::start();
    is_refused(&welcomed(server.handle.path()), b"");
    server.expect(&refused("Malformed"));
}

#[test]
fn descriptors_sent_along_are_refused_and_not_kept() {
    let mut server = Server::start();
    let socket = welcomed(server.handle.path());
    let (reader, writer) = std::io::pipe().unwrap();
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    let gift = [writer.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&gift)));
    let words = message("scope", i64::MAX);
    sendmsg(&socket, &[IoSlice::new(&words)], &mut control, SendFlags::NOSIGNAL).unwrap();
    server.expect(&refused("Malformed"));
    // Nobody but us has the writing end, so that is the end of the file when we let go of it.
    drop(writer);
    assert_eq!(std::io::Read::read(&mut { reader }, &mut [0]).unwrap(), 0);
}

#[test]
fn who_speaks_before_it_is_welcome_is_refused() {
    let around = tempfile::tempdir().unwrap();
    let path = around.path().join("timers");
    let mut server = Worker::serve(&path);
    // While it stands still it lets nobody in.
    server.stop();
    let socket = line(&path);
    send(&socket, &message("scope", i64::MAX), SendFlags::NOSIGNAL).unwrap();
    server.signal(libc::SIGCONT);
    server.expect("refused");
    is_closed(&socket);
    // Others are let in.
    drop(welcomed(&path));
    server.word();
    server.ends_well();
}

#[test]
fn more_connections_of_one_process_than_it_may_have_are_refused() {
    let mut server = Server::start();
    let path = server.handle.path().to_owned();
    let held: Vec<_> = (0..4).map(|_| welcomed(&path)).collect();
    let error = LocalTimerClient::connect(&path).unwrap_err();
    assert!(
        matches!(&error, TimerError::Other(why) if why.downcast_ref() == Some(&Refusal::TooManyOfOne)),
        "{error:?}"
    );
    server.expect(&refused("TooManyOfOne"));
    still_works(&server);
    drop(held);
    // A process that has closed its connections may connect again at once, as often as it likes.
    let closed_and_refused = |error: &TimerError| {
        // A process that another test starts has copies of our sockets until it is another program. Only for so long they are not closed.
        matches!(error, TimerError::Other(why) if why.downcast_ref() == Some(&Refusal::TooManyOfOne))
    };
    for _ in 0..100 {
        let client = loop {
            match LocalTimerClient::connect(&path) {
                Err(error) if closed_and_refused(&error) => std::thread::yield_now(),
                came => break came.unwrap(),
            }
        };
        drop(client);
    }
}

#[test]
fn more_connections_in_sum_than_there_may_be_are_refused() {
    let mut limits = forebear::timer::local::Limits::default();
    (limits.connections, limits.connections_of_one) = (6, 100);
    let mut server = Server::of(LocalTimerServer::bind().unwrap().limits(limits));
    let held: Vec<_> = (0..6).map(|_| welcomed(server.handle.path())).collect();
    is_closed(&line(server.handle.path()));
    server.expect(&refused("TooManyConnections"));
    drop(held);
}

#[test]
fn more_processes_than_are_watched_are_refused() {
    let mut limits = forebear::timer::local::Limits::default();
    limits.workers = 1;
    let mut server = Server::of(LocalTimerServer::bind().unwrap().limits(limits));
    let mut first = Worker::start("in time", &server);
    first.expect("done");
    server.expect(&Told::Joined(first.pid()));
    is_refused(&welcomed(server.handle.path()), &message("scope", i64::MAX));
    server.expect(&refused("TooManyWorkers"));
    first.ends_well();
}

#[test]
fn floods_and_those_who_never_read_delay_nobody_for_long() {
    let mut server = Server::start();
    let path = server.handle.path().to_owned();
    let over = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| {
            // As fast as it can.
            let socket = welcomed(&path);
            let words = [message("flood", i64::MAX), message("flood", -1)];
            for word in words.iter().cycle() {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                send(&socket, word, SendFlags::NOSIGNAL).unwrap();
            }
        });
        threads.spawn(|| {
            // Comes and goes, and reads nothing.
            while !over.load(Ordering::Relaxed) {
                let socket = line(&path);
                send(&socket, b"what?", SendFlags::NOSIGNAL).ok();
            }
        });
        for _ in 0..3 {
            still_works(&server);
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(server.handle.stats().reaped, 3);
    server.expect_some(|told| matches!(told, Told::Refused(..)), "a refusal");
    let told = server.stop();
    // However many there were.
    let refusals = told.iter().filter(|told| matches!(told, Told::Refused(..))).count();
    assert!(refusals < 32 * 100, "{refusals}");
}

#[test]
fn half_a_line_is_as_good_as_none() {
    let mut server = Server::start();
    let socket = welcomed(server.handle.path());
    send(&socket, &message("scope", i64::MAX), SendFlags::NOSIGNAL).unwrap();
    shutdown(&socket, Shutdown::Write).unwrap();
    server.expect(&Told::Closed(std::process::id()));
    is_closed(&socket);
    still_works(&server);
}

#[test]
fn when_descriptors_run_out_those_who_are_in_are_served_and_others_get_in_later() {
    let around = tempfile::tempdir().unwrap();
    let path = around.path().join("timers");
    let mut command = Worker::command("serves");
    command.env("PATH_OF_SERVER", &path).env("DESCRIPTORS", "32");
    let mut server = Worker::spawn(command);
    server.expect("ready");
    let early = welcomed(&path);
    let others: Vec<_> = (0..40).map(|_| line(&path)).collect();
    // It finds out when it accepts, or when it looks who that was.
    while !["full", "refused"].contains(&&*server.hear()) {}
    let mut only_log = message("early", 1);
    only_log[5] = 1;
    send(&early, &only_log, SendFlags::NOSIGNAL).unwrap();
    while server.hear() != "early" {}
    drop(others);
    drop(welcomed(&path));
    server.word();
    server.ends_well();
}

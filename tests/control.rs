//! The control socket, over real sockets, with a daemon that only pretends.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use hmkeeper::control::client::{self, ClientError};
use hmkeeper::control::server::{BindError, Socket};
use hmkeeper::control::{Call, LINE_MAX, Reply, Request};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// A server that knows process 7 and nobody else.
struct Fake {
    stop: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Fake {
    fn start(path: &Path) -> Self {
        let socket = Socket::bind(path).unwrap();
        let stop = CancellationToken::new();
        let end = stop.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let (calls, mut called) = mpsc::channel::<Call>(4);
                let server = tokio::spawn(socket.serve(calls, end));
                while let Some(call) = called.recv().await {
                    let reply = match call.request {
                        Request::Attach { pid: 7 } => Reply::done("watching 7"),
                        Request::Attach { pid } => Reply::failed(4, format!("no {pid}")),
                        other => Reply::done(format!("{other:?}")),
                    };
                    let _ = call.reply.send(reply);
                }
                server.await.unwrap().unwrap();
            });
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn lines(path: &Path, text: &[u8]) -> Vec<Reply> {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(text).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    BufReader::new(stream)
        .lines()
        .map_while(Result::ok)
        .map(|line| serde_json::from_str(&line).unwrap())
        .collect()
}

#[test]
fn many_requests_on_one_connection_and_many_connections() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.sock");
    let _fake = Fake::start(&path);
    let replies = lines(
        &path,
        b"{\"command\":\"pause\"}\nrubbish\n{\"command\":\"attach\",\"pid\":8}\n",
    );
    assert_eq!(replies.len(), 3);
    assert_eq!(replies[0].message.as_deref(), Some("Pause"));
    assert_eq!(replies[1].code, Some(2));
    assert!(
        replies[1]
            .error
            .as_ref()
            .unwrap()
            .contains("docs/control.md")
    );
    assert_eq!(replies[2].code, Some(4));
    let clients: Vec<_> = (0..50)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || client::call(&path, Request::Attach { pid: 7 }).unwrap())
        })
        .collect();
    for client in clients {
        assert!(client.join().unwrap().ok);
    }
}

#[test]
fn a_line_without_end_is_refused_and_the_server_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.sock");
    let _fake = Fake::start(&path);
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(&vec![b'x'; LINE_MAX + 1]).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    let reply: Reply = serde_json::from_str(&answer).unwrap();
    assert!(!reply.ok && reply.error.unwrap().contains("4096"));
    assert!(client::call(&path, Request::Resume).unwrap().ok);
}

#[test]
fn the_socket_is_for_its_owner_and_group_and_goes_with_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.sock");
    {
        let _fake = Fake::start(&path);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
    }
    assert!(!path.exists());
    let error = client::call(&path, Request::Status).unwrap_err();
    assert!(matches!(error, ClientError::NotRunning(_)), "{error}");
}

#[test]
fn a_dead_daemons_socket_is_replaced_and_a_live_ones_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.sock");
    // Dropping a listener leaves its file, as a crash does.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let _fake = Fake::start(&path);
    let error = Socket::bind(&path).unwrap_err();
    assert!(matches!(error, BindError::Live(_)), "{error}");
    assert!(client::call(&path, Request::Pause).unwrap().ok);
}

#[test]
fn what_is_no_socket_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes.txt");
    std::fs::write(&path, "mine").unwrap();
    assert!(matches!(
        Socket::bind(&path).unwrap_err(),
        BindError::NotASocket(_)
    ));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    let missing = dir.path().join("missing/c.sock");
    let error = Socket::bind(&missing).unwrap_err();
    assert!(matches!(error, BindError::NoDirectory(_)), "{error}");
    assert!(error.to_string().contains("create it"), "{error}");
}

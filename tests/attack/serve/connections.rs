//! Connections that send too slowly, no HTTP, or not all, that read nothing, or are gone.

use std::io::Write as _;
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use socket2::{Domain, SockRef, Socket, Type};

use super::server::Server;
use super::{JSON, LOCAL, many, mini, read, request, tiny};
use crate::harness::Folder;

#[test]
fn half_sent_bodies_hold_neither_memory_nor_the_server() {
    let folder = Folder::new();
    let more = ["--request-memory", "48000000", "--stall-timeout", "3"];
    let server = Server::start(&tiny(&folder), &more);
    let before = server.resident();
    let size = 7_900_000;
    let head = format!("POST /embed HTTP/1.1\r\n{JSON}Content-Length: {size}\r\n\r\n");
    let mut open: Vec<(TcpStream, usize)> = (0..60)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(b"{\"inputs\": \"").unwrap();
            stream.set_nonblocking(true).unwrap();
            (stream, 0)
        })
        .collect();
    // As much as the server takes, but never all of it.
    let block = [b'a'; 65_536];
    for _ in 0..20 {
        for (stream, sent) in &mut open {
            while *sent + block.len() < size - 100_000
                && let Ok(wrote) = stream.write(&block)
            {
                *sent += wrote;
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 150, "{grown} MB for bodies that never end");
    server.serves_others();
    // Nothing came for too long, while others waited: they are told so, and end.
    let (mut stream, _) = open.swap_remove(0);
    stream.set_nonblocking(false).unwrap();
    let answer = read(&mut stream).expect("an answer");
    assert_eq!(answer.status, 408, "{}", answer.body);
    assert!(answer.error().contains("body"), "{}", answer.body);
    drop(open);
    // What they held is free again.
    let body = json!({ "inputs": "river ".repeat(50_000) }).to_string();
    assert_eq!(server.post_raw("/embed", JSON, body.as_bytes()).status, 200);
}

#[test]
fn slow_heads_keep_nobody_out() {
    let folder = Folder::new();
    let limits =
        ["--max-concurrent-requests", "8", "--max-connections", "40", "--header-timeout", "2"];
    let server = Server::start(&tiny(&folder), &limits);
    let mut slow: Vec<TcpStream> = (0..300)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(b"GET /health HTTP/1.1\r\nHost: local").unwrap();
            stream
        })
        .collect();
    server.serves_others();
    // The first had to go for the last; the last runs out of time.
    assert!(read(&mut slow[0]).is_none());
    assert!(read(slow.last_mut().unwrap()).is_none());
    server.serves_others();
}

#[test]
fn without_file_descriptors_a_waiting_connection_goes() {
    let folder = Folder::new();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_kiln")]);
    let server = Server::start_by(command, &tiny(&folder), &[]);
    let open: Vec<TcpStream> = (0..150).map(|_| server.connect()).collect();
    server.serves_others();
    drop(open);
}

#[test]
fn heads_without_end_garbage_and_other_protocols_are_cut_off() {
    let folder = Folder::new();
    let server = Server::start(&tiny(&folder), &["--header-timeout", "2"]);
    let before = server.resident();
    let long = format!("GET /health HTTP/1.1\r\nHost: localhost\r\nX: {}", "a".repeat(1 << 20));
    let lines = "X: a\r\n".repeat(100_000);
    let many_lines = format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n");
    let path = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(1 << 20));
    for bytes in [long.as_bytes(), many_lines.as_bytes(), path.as_bytes()] {
        // The server may have closed before all of it was written, which takes its answer away.
        if let Some(answer) = server.send(bytes) {
            assert!([400, 414, 431].contains(&answer.status), "{}", answer.head);
        }
    }
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let noise: Vec<u8> =
        (0..50_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let smuggled = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde";
    for bytes in [
        &preface[..],
        &noise,
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
        b"\r\n\r\n\r\n",
        smuggled,
    ] {
        if let Some(answer) = server.send(bytes) {
            assert!((400..500).contains(&answer.status), "{}", answer.head);
        }
    }
    // Requests one behind the other, none of whose answers is read.
    let mut stream = server.connect();
    stream.set_nonblocking(true).unwrap();
    let piped = format!("GET /info HTTP/1.1\r\n{LOCAL}\r\n").repeat(1000);
    for _ in 0..200 {
        if stream.write(piped.as_bytes()).is_err() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 60, "{grown} MB");
    server.serves_others();
}

#[test]
fn who_has_gone_is_worked_for_no_more() {
    let folder = Folder::new();
    let server = Server::start(&tiny(&folder), &["--max-batch-tokens", "64"]);
    let body = request("POST", "/embed", JSON, &many(2048));
    let open: Vec<TcpStream> = (0..12)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(&body).unwrap();
            // Closed like this, a connection is reset.
            SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
            stream
        })
        .collect();
    while server.metric("te_request_count{method=\"embed\"}") < 12.0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(open);
    let ended = || {
        let gone = server.metric("te_request_failure{err=\"gone\"}");
        (gone, gone + server.metric("te_request_success{method=\"embed\"}"))
    };
    while ended().1 < 12.0 || server.metric("te_queue_size") > 0.0 {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(ended().0 > 0.0, "all were answered to nobody");
    server.serves_others();
}

#[test]
fn a_client_that_has_sent_all_may_close_its_side() {
    let folder = Folder::new();
    let server = Server::start(&tiny(&folder), &[]);
    let mut stream = server.connect();
    stream.write_all(&request("POST", "/embed", JSON, &many(300))).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let answer = read(&mut stream).expect("an answer");
    assert_eq!(answer.json().as_array().map(Vec::len), Some(300));
    // One that has not sent all is answered so.
    let mut stream = server.connect();
    let whole = request("POST", "/embed", JSON, &many(300));
    stream.write_all(&whole[..whole.len() - 9]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    if let Some(answer) = read(&mut stream) {
        assert_eq!(answer.status, 422, "{}", answer.body);
    }
    server.serves_others();
}

#[test]
fn answers_that_nobody_reads_give_their_memory_back() {
    // One such answer takes all the memory that there is for them.
    let more = ["--request-memory", "4000000", "--stall-timeout", "1"];
    let server = Server::start(mini(), &more);
    let before = server.resident();
    let body = request("POST", "/embed", JSON, &many(400));
    let unread: Vec<Socket> = (0..3)
        .map(|_| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_recv_buffer_size(2048).unwrap();
            let address: std::net::SocketAddr = server.address().parse().unwrap();
            socket.connect(&address.into()).unwrap();
            (&socket).write_all(&body).unwrap();
            socket
        })
        .collect();
    let answer = server.post_raw("/embed", JSON, &many(400));
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.json().as_array().map(Vec::len), Some(400));
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 250, "{grown} MB");
    drop(unread);
}

//! A network that fails: stands before an address, and harms what goes there.

#![allow(unreachable_pub)]

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// What happens to what is sent, once so many bytes have passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    /// Each piece comes 20 ms later.
    Delay,
    /// Nothing comes any more, and the connection stays.
    Stall,
    /// The connection ends.
    Cut,
    /// One bit of each piece is turned.
    Damage,
}

/// Listens, and passes on to `to` what comes, which is harmed after so many bytes of a connection. Returns where it
/// listens.
///
/// # Errors
/// An address that cannot be listened on.
pub fn proxy(
    listen: impl ToSocketAddrs,
    to: SocketAddr,
    harm: Harm,
    after: usize,
) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(listen)?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for from in listener.incoming() {
            let Ok(from) = from else { return };
            // Nobody may listen there yet: who connects sees a closed connection, and tries again.
            let Ok(there) = TcpStream::connect(to) else { continue };
            let (Ok(mut back), Ok(mut here)) = (there.try_clone(), from.try_clone()) else {
                continue;
            };
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut back, &mut here);
                let _ = here.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || pass(from, there, harm, after));
        }
    });
    Ok(address)
}

fn pass(mut from: TcpStream, mut there: TcpStream, harm: Harm, after: usize) {
    let (mut buffer, mut passed) = (vec![0; 1 << 16], 0);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        passed += count;
        if passed > after {
            match harm {
                Harm::Delay => std::thread::sleep(Duration::from_millis(20)),
                Harm::Stall => std::thread::sleep(Duration::from_secs(60)),
                Harm::Cut => break,
                Harm::Damage => buffer[count / 2] ^= 4,
            }
        }
        if there.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = there.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

//! A network that fails, for `tests/hosts.sh`: `proxy LISTEN TO delay|stall|cut|damage AFTER_BYTES`.

use std::error::Error;
use std::net::SocketAddr;

use proxy::Harm;

#[path = "../../../tests/harness/proxy.rs"]
mod proxy;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [listen, to, harm, after] = args.as_slice() else {
        return Err("proxy LISTEN TO delay|stall|cut|damage AFTER_BYTES".into());
    };
    let harm = match harm.as_str() {
        "delay" => Harm::Delay,
        "stall" => Harm::Stall,
        "cut" => Harm::Cut,
        "damage" => Harm::Damage,
        other => return Err(format!("no such harm: {other}").into()),
    };
    let address = proxy::proxy(listen.as_str(), to.parse::<SocketAddr>()?, harm, after.parse()?)?;
    println!("{address}");
    loop {
        std::thread::park();
    }
}

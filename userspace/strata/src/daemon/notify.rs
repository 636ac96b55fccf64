//! Reports the daemon's state to systemd (sd_notify(3)): ready, reloading, stopping, alive.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The service manager, if one listens.
pub struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
    /// When it was last alive.
    alive: Mutex<Option<Instant>>,
}

impl Manager {
    pub fn of_environment() -> Self {
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|name| {
            let address = match name.as_bytes().strip_prefix(b"@") {
                Some(name) => SocketAddr::from_abstract_name(name),
                None => SocketAddr::from_pathname(&name),
            };
            Some((UnixDatagram::unbound().ok()?, address.ok()?))
        });
        Self { socket, watchdog: watchdog(), alive: Mutex::default() }
    }

    /// The interval at which it expects a watchdog message.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog.filter(|_| self.socket.is_some())
    }

    pub fn ready(&self, status: &str) {
        self.say(&format!("READY=1\nSTATUS={status}\nMAINPID={}", std::process::id()));
    }

    pub fn reloading(&self) {
        let now = strata_agent::engine::monotonic_nanos() / 1000;
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={now}"));
    }

    pub fn stopping(&self) {
        self.say("STOPPING=1\nSTATUS=Sending what is left");
    }

    /// Once a second is enough.
    pub fn alive(&self) {
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        if alive.is_none_or(|last| last.elapsed() >= Duration::from_secs(1)) {
            *alive = Some(Instant::now());
            self.say("WATCHDOG=1");
        }
    }

    fn say(&self, what: &str) {
        if let Some((socket, address)) = &self.socket
            && let Err(error) = socket.send_to_addr(what.as_bytes(), address)
        {
            tracing::debug!(%error, "the service manager is not notified");
        }
    }
}

/// Half of the time after which the manager would give up: others may be in the way.
fn watchdog() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    if number("WATCHDOG_PID").is_some_and(|pid| pid != u64::from(std::process::id())) {
        return None;
    }
    Some(Duration::from_micros(number("WATCHDOG_USEC")?) / 2).filter(|period| !period.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_arrives_at_a_path() {
        let folder = std::env::temp_dir().join(format!("strata-notify-{}", std::process::id()));
        let receiver = UnixDatagram::bind(&folder).expect("a socket");
        let address = SocketAddr::from_pathname(&folder).expect("an address");
        let socket = UnixDatagram::unbound().expect("a socket");
        let manager =
            Manager { socket: Some((socket, address)), watchdog: None, alive: Mutex::default() };
        manager.ready("fine");
        let mut buffer = [0; 200];
        let length = receiver.recv(&mut buffer).expect("a message");
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        std::fs::remove_file(&folder).expect("it was there");
        assert!(text.starts_with("READY=1\nSTATUS=fine\nMAINPID="), "{text}");
    }
}

//! Requests the status of this host's daemon, over its unix socket.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail};
use serde_json::Value;

use super::Status;
use crate::doctor::NeedsRoot;

const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of an answer.
const MOST: u64 = 8 << 20;

/// The status, and the JSON it was.
pub fn ask(socket: &Path) -> Result<(Status, String)> {
    let body = get_status(socket)?;
    let status = understood(&body).ok_or_else(|| stranger(socket))?;
    Ok((status, body))
}

/// What a probe gets.
pub struct Health {
    pub is_alive: bool,
    pub answer: String,
}

pub fn ask_health(socket: &Path) -> Result<Health> {
    let (code, answer) = get(socket, "/healthz")?;
    match code.as_str() {
        "200" => Ok(Health { is_alive: true, answer }),
        "503" => Ok(Health { is_alive: false, answer }),
        _ => Err(stranger(socket).context(format!("the answer was {code}"))),
    }
}

/// The answer, if it is one of strata's daemon.
fn understood(body: &str) -> Option<Status> {
    let value: Value = serde_json::from_str(body).ok()?;
    if !value["healthy"].is_boolean() || !value["version"].is_string() {
        return None;
    }
    serde_json::from_value(value).ok()
}

fn stranger(socket: &Path) -> Error {
    anyhow!(
        "the process that listens at {} is not a strata daemon: pass the daemon's metrics.socket with --socket",
        socket.display()
    )
}

fn get_status(socket: &Path) -> Result<String> {
    let (code, body) = get(socket, "/status")?;
    if code != "200" {
        return Err(stranger(socket).context(format!("the answer was {code}")));
    }
    Ok(body)
}

/// The code and body of an answer.
fn get(socket: &Path, path: &str) -> Result<(String, String)> {
    let shown = socket.display();
    let mut stream = UnixStream::connect(socket).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => NeedsRoot(format!(
            "{shown} is root's, because the status names every process: run this as root"
        ))
        .into(),
        _ => anyhow!(
            "no daemon answers at {shown} ({error}): start `strata daemon`, or pass its metrics.socket with --socket"
        ),
    })?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: strata\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(MOST).read_to_string(&mut answer).context("the daemon's answer was cut off")?;
    if answer.len() as u64 == MOST {
        bail!("what answers at {shown} has no end: more than {MOST} bytes");
    }
    let Some((head, body)) = answer.split_once("\r\n\r\n") else {
        bail!("what answers at {shown} does not speak HTTP");
    };
    let code = head.split_ascii_whitespace().nth(1).unwrap_or_default();
    Ok((code.to_owned(), body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_not_a_status_is_refused() {
        for body in ["", "fine", "[]", "3", "{}", r#"{"version":"1.0","status":"up"}"#] {
            assert!(understood(body).is_none(), "{body}");
        }
        let socket = Path::new("/run/strata/status.sock");
        let error = stranger(socket).to_string();
        assert!(error.contains("status.sock") && error.contains("--socket"), "{error}");
    }

    #[test]
    fn the_status_of_another_version_is_understood() {
        let body = r#"{"version":"9.0","healthy":false,"memory":{"bytes":7},"new":[{}]}"#;
        let status = understood(body).expect("a status");
        assert_eq!((status.healthy, status.memory.bytes), (false, 7));
    }
}

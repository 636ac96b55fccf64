//! Sessions of a runtime's events that another tool has: `dotnet-trace`, `dotnet-gcdump`.
//!
//! Format: docs/design-docs/ipc-protocol.md of dotnet/diagnostics, `CollectTracing`, `StopTracing`.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::dotnet_profiler::diagnostics_socket;

const STOP: u8 = 1;
const COLLECT: u8 = 2;

const PATIENCE: Duration = Duration::from_secs(60);

/// What a session has the events of.
#[derive(Clone, Copy, Debug)]
pub struct Provider {
    pub name: &'static str,
    pub keywords: u64,
    pub level: u32,
}

/// One that has no event at all.
pub const NOTHING: Provider = Provider { name: "Strata-Test-Nothing", keywords: 1, level: 1 };
/// As `dotnet-gcdump` has it: objects, with a collection for each session (`GCHeapCollect`).
pub const COLLECTING: Provider =
    Provider { name: "Microsoft-Windows-DotNETRuntime", keywords: 0x80_0000, level: 4 };

/// An open session.
pub struct EventSession {
    pid: i32,
    socket: UnixStream,
    number: [u8; 8],
}

impl EventSession {
    /// `None`: the runtime refuses it.
    pub fn open(pid: i32, provider: Provider) -> Result<Option<Self>> {
        let mut payload = 1_u32.to_le_bytes().to_vec(); // megabytes
        payload.extend(1_u32.to_le_bytes()); // the format: nettrace
        payload.extend(1_u32.to_le_bytes()); // providers
        payload.extend(provider.keywords.to_le_bytes());
        payload.extend(provider.level.to_le_bytes());
        let name: Vec<u16> = provider.name.encode_utf16().chain([0]).collect();
        payload.extend(u32::try_from(name.len())?.to_le_bytes());
        payload.extend(name.iter().flat_map(|unit| unit.to_le_bytes()));
        payload.extend(0_u32.to_le_bytes()); // no filter
        let (socket, number) = command(pid, COLLECT, &payload)?;
        Ok(number.map(|number| Self { pid, socket, number }))
    }

    /// Reads what the runtime writes, until the session is closed.
    pub fn read(&self) -> Result<()> {
        let mut socket = self.socket.try_clone()?;
        socket.set_read_timeout(None)?;
        std::thread::spawn(move || std::io::copy(&mut socket, &mut std::io::sink()));
        Ok(())
    }

    /// Closes it by a command: a runtime notices a reader's end only when it has an event to write.
    pub fn close(self) -> Result<()> {
        // What it writes at the end is read by nothing.
        self.socket.shutdown(std::net::Shutdown::Both)?;
        let (_, number) = command(self.pid, STOP, &self.number)?;
        number.context("a session could not be closed")?;
        Ok(())
    }
}

/// Sends a command; the connection, and the session's number if it was a success.
fn command(pid: i32, command: u8, payload: &[u8]) -> Result<(UnixStream, Option<[u8; 8]>)> {
    let mut request = b"DOTNET_IPC_V1\0".to_vec();
    request.extend(u16::try_from(20 + payload.len())?.to_le_bytes());
    request.extend([2, command, 0, 0]);
    request.extend(payload);
    let mut socket = UnixStream::connect(diagnostics_socket(pid)?)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.write_all(&request)?;
    let mut head = [0; 20];
    socket.read_exact(&mut head)?;
    if head[17] != 0 {
        return Ok((socket, None));
    }
    let mut number = [0; 8];
    socket.read_exact(&mut number)?;
    Ok((socket, Some(number)))
}

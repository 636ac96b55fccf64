//! Messages with descriptors between the daemon and its children: a SOCK_SEQPACKET pair.
//!
//! Message boundaries are the kernel's, so a child cannot get the daemon out of step; a message
//! longer than the buffer is an error, never a partial message. Descriptors are only taken where
//! the receiver asks for them: all others are dropped by the kernel.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};

/// The longest message. What does not fit goes through the exchange file of a worker.
pub const MAX_MESSAGE: usize = 64 << 10;
/// The most descriptors in one message.
pub const MAX_DESCRIPTORS: usize = 4;

/// One end of a pair.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

/// What was received: how many bytes of the buffer, and the descriptors.
#[derive(Debug)]
pub struct Received {
    pub length: usize,
    pub descriptors: Vec<OwnedFd>,
}

/// Whether a call waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    Block,
    DontWait,
}

impl Channel {
    /// Both ends, the first for the daemon, the second for a child.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self { socket: ours }, Self { socket: theirs }))
    }

    pub fn from_socket(socket: OwnedFd) -> Self {
        Self { socket }
    }

    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }

    pub fn send(
        &self,
        message: &[u8],
        descriptors: &[BorrowedFd<'_>],
        wait: Wait,
    ) -> io::Result<()> {
        let mut flags = SendFlags::NOSIGNAL;
        if wait == Wait::DontWait {
            flags |= SendFlags::DONTWAIT;
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors))
        {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        loop {
            match sendmsg(&self.socket, &[IoSlice::new(message)], &mut ancillary, flags) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// The next message; a length of 0 means that the other end is closed.
    pub fn receive(
        &self,
        buffer: &mut [u8],
        with_descriptors: bool,
        wait: Wait,
    ) -> io::Result<Received> {
        let mut flags = RecvFlags::CMSG_CLOEXEC;
        if wait == Wait::DontWait {
            flags |= RecvFlags::DONTWAIT;
        }
        receive_from(self.socket.as_fd(), buffer, with_descriptors, flags)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn receive_from(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    with_descriptors: bool,
    flags: RecvFlags,
) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let space: &mut [MaybeUninit<u8>] = if with_descriptors { &mut space } else { &mut [] };
    let mut ancillary = RecvAncillaryBuffer::new(space);
    let message = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags) {
            Ok(message) => break message,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    };
    let mut descriptors = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            descriptors.extend(received);
        }
    }
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "message longer than allowed"));
    }
    Ok(Received { length: message.bytes, descriptors })
}

/// A descriptor of a target's file that the holder cannot touch by accident.
///
/// Closing a file of a FUSE filesystem waits for its server (FLUSH, fs/fuse/file.c of Linux 6.12),
/// uninterruptibly, also below an overlay. The daemon must therefore not even own such a
/// descriptor. It is left in the queue of a socket whose other end is closed: a worker that is
/// given the socket takes it out with MSG_PEEK, as often as needed, and dropping the socket frees
/// it without a flush.
#[derive(Debug)]
pub struct Envelope {
    socket: OwnedFd,
}

impl Envelope {
    pub fn seal(file: BorrowedFd<'_>) -> io::Result<Self> {
        let (sender, receiver) = Channel::pair()?;
        sender.send(b"f", &[file], Wait::DontWait)?;
        Ok(Self { socket: receiver.into_socket() })
    }

    pub fn from_socket(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// The file; for the workers only.
    pub fn open(&self) -> io::Result<OwnedFd> {
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let received = receive_from(self.socket.as_fd(), &mut [0], true, flags)?;
        received
            .descriptors
            .into_iter()
            .next()
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }
}

impl AsFd for Envelope {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A file in memory that only its holders know, and that cannot be executed.
///
/// Hosts may refuse memory files that could be (sysctl vm.memfd_noexec=2, Linux 6.3); kernels before
/// do not know the flag.
pub fn memory_file(name: &str) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(rustix::io::Errno::INVAL) => Ok(memfd_create(name, flags)?),
        created => Ok(created?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn an_envelope_gives_its_file_again_and_again() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let envelope = Envelope::seal(file.as_fd()).unwrap();
        drop(file);
        for _ in 0..3 {
            let mut magic = [0; 4];
            std::fs::File::from(envelope.open().unwrap()).read_exact(&mut magic[..1]).unwrap();
            assert_eq!(magic[0], 0x7f);
            let again = std::fs::File::from(envelope.open().unwrap());
            std::os::unix::fs::FileExt::read_exact_at(&again, &mut magic, 0).unwrap();
            assert_eq!(&magic, b"\x7fELF");
            // The offset is shared, as between all descriptors of one open file.
            std::io::Seek::rewind(&mut &again).unwrap();
        }
    }

    #[test]
    fn a_message_longer_than_the_buffer_is_an_error() {
        let (one, other) = Channel::pair().unwrap();
        one.send(&[1; 100], &[], Wait::DontWait).unwrap();
        assert_eq!(
            other.receive(&mut [0; 50], false, Wait::DontWait).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }

    #[test]
    fn descriptors_that_were_not_requested_are_dropped() {
        let (one, other) = Channel::pair().unwrap();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        one.send(b"x", &[file.as_fd()], Wait::DontWait).unwrap();
        let received = other.receive(&mut [0; 8], false, Wait::DontWait).unwrap();
        assert_eq!(received.length, 1);
        assert!(received.descriptors.is_empty());
    }

    #[test]
    fn a_closed_end_reads_as_an_empty_message() {
        let (one, other) = Channel::pair().unwrap();
        drop(one);
        assert_eq!(other.receive(&mut [0; 8], true, Wait::Block).unwrap().length, 0);
    }
}

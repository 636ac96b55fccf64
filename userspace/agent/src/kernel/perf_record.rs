//! Records of the perf ring that carries process events: a parser over bytes.
//!
//! Layouts: include/uapi/linux/perf_event.h, `enum perf_event_type`. Every event is opened with
//! `sample_id_all` and `PERF_SAMPLE_TID | PERF_SAMPLE_TIME`, so each record ends in
//! `{ u32 pid, tid; u64 time }`.

const RECORD_MMAP: u32 = 1;
const RECORD_LOST: u32 = 2;
const RECORD_COMM: u32 = 3;
const RECORD_EXIT: u32 = 4;
const RECORD_FORK: u32 = 7;
const RECORD_MMAP2: u32 = 10;
const MISC_COMM_EXEC: u16 = 1 << 13;
const SAMPLE_ID_BYTES: usize = 16;

/// A file as the kernel names it in a mapping: enough to recognise it, not to trust it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MappedInode {
    pub major: u32,
    pub minor: u32,
    pub inode: u64,
    pub generation: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Mmap {
        pid: u32,
        start: u64,
        length: u64,
        offset: u64,
        inode: MappedInode,
        path: Vec<u8>,
    },
    /// A thread's name changed; `exec` when a new program replaced the process.
    Comm {
        pid: u32,
        tid: u32,
        name: Vec<u8>,
        exec: bool,
    },
    Fork {
        pid: u32,
        parent: u32,
        tid: u32,
    },
    Exit {
        pid: u32,
        tid: u32,
    },
    Lost {
        count: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timed {
    pub time: u64,
    pub event: Event,
}

impl Timed {
    /// The number of lost events, all before the next record.
    pub fn lost(count: u64) -> Self {
        Self { time: 0, event: Event::Lost { count } }
    }
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    fn long(&mut self) -> Option<u64> {
        Some(u64::from_ne_bytes(self.take(8)?.try_into().ok()?))
    }

    fn word(&mut self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.take(4)?.try_into().ok()?))
    }

    /// Text up to its NUL; the kernel pads it to 8 bytes.
    fn text(&mut self) -> Vec<u8> {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(self.0.len());
        self.0.get(..end).unwrap_or_default().to_vec()
    }
}

/// The process and the time of a mapping's record.
pub fn mapping_of(kind: u32, body: &[u8]) -> Option<(u32, u64)> {
    if kind != RECORD_MMAP2 {
        return None;
    }
    let time = body.last_chunk::<8>()?;
    Some((u32::from_ne_bytes(*body.first_chunk()?), u64::from_ne_bytes(*time)))
}

/// The time of the record of a thread that renames itself or another.
pub fn renamed_at(kind: u32, misc: u16, body: &[u8]) -> Option<u64> {
    if kind != RECORD_COMM || misc & MISC_COMM_EXEC != 0 {
        return None;
    }
    Some(u64::from_ne_bytes(*body.last_chunk()?))
}

/// Parses one record; `None` for kinds that are not asked for, or a malformed one.
pub fn parse(kind: u32, misc: u16, body: &[u8]) -> Option<Timed> {
    let payload = body.len().checked_sub(SAMPLE_ID_BYTES)?;
    let (payload, trailer) = body.split_at_checked(payload)?;
    let mut trailer = Bytes(trailer);
    trailer.take(8)?;
    let time = trailer.long()?;
    let mut bytes = Bytes(payload);
    let event = match kind {
        RECORD_MMAP => return None,
        RECORD_MMAP2 => {
            let (pid, _tid) = (bytes.word()?, bytes.word()?);
            let (start, length, offset) = (bytes.long()?, bytes.long()?, bytes.long()?);
            let (major, minor) = (bytes.word()?, bytes.word()?);
            let (inode, generation) = (bytes.long()?, bytes.long()?);
            let (_protection, _flags) = (bytes.word()?, bytes.word()?);
            let inode = MappedInode { major, minor, inode, generation };
            Event::Mmap { pid, start, length, offset, inode, path: bytes.text() }
        }
        RECORD_COMM => {
            let (pid, tid) = (bytes.word()?, bytes.word()?);
            Event::Comm { pid, tid, name: bytes.text(), exec: misc & MISC_COMM_EXEC != 0 }
        }
        RECORD_FORK => {
            let (pid, parent, tid) = (bytes.word()?, bytes.word()?, bytes.word()?);
            Event::Fork { pid, parent, tid }
        }
        RECORD_EXIT => {
            let (pid, _parent, tid) = (bytes.word()?, bytes.word()?, bytes.word()?);
            Event::Exit { pid, tid }
        }
        RECORD_LOST => {
            bytes.long()?;
            Event::Lost { count: bytes.long()? }
        }
        _ => return None,
    };
    Some(Timed { time, event })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_trailer(mut body: Vec<u8>, time: u64) -> Vec<u8> {
        body.extend_from_slice(&[0; 8]);
        body.extend_from_slice(&time.to_ne_bytes());
        body
    }

    #[test]
    fn an_exec_is_distinguished_from_a_rename() {
        let mut body = Vec::new();
        body.extend_from_slice(&7u32.to_ne_bytes());
        body.extend_from_slice(&8u32.to_ne_bytes());
        body.extend_from_slice(b"cat\0\0\0\0\0");
        let body = with_trailer(body, 99);
        let event = Event::Comm { pid: 7, tid: 8, name: b"cat".to_vec(), exec: true };
        assert_eq!(parse(RECORD_COMM, MISC_COMM_EXEC, &body), Some(Timed { time: 99, event }));
        let event = Event::Comm { pid: 7, tid: 8, name: b"cat".to_vec(), exec: false };
        assert_eq!(parse(RECORD_COMM, 0, &body), Some(Timed { time: 99, event }));
    }

    #[test]
    fn a_cut_record_is_refused() {
        let body = with_trailer(vec![0; 16], 1);
        assert_eq!(parse(RECORD_MMAP2, 0, &body), None);
        assert_eq!(parse(RECORD_MMAP2, 0, &[]), None);
    }
}

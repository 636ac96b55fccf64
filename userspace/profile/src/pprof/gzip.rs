//! Compresses as gzip, with the memory of the thread's last compressor.
//!
//! A compressor takes 300 KB, most of which is zeroed anew: for many small profiles that was more
//! work than compressing them. `flate2`'s own writer of gzip cannot be used again.
//!
//! RFC 1952: a header, the deflated bytes, their checksum and length.

use std::cell::Cell;
use std::io::{self, Write};

use flate2::{Compress, Compression, Crc, FlushCompress, Status};

/// A third of the time of the usual level, and a tenth more bytes.
const LEVEL: u32 = 2;
/// Deflate, no name, no time, by Unix.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
/// Compressed bytes that are written together.
const BUFFER: usize = 16 << 10;

thread_local! {
    static SPARE: Cell<Option<Compress>> = const { Cell::new(None) };
}

/// Compresses what is written to it.
pub struct Gzip<W> {
    out: W,
    deflate: Compress,
    crc: Crc,
    buffer: Vec<u8>,
}

impl<W: Write> Gzip<W> {
    pub fn new(out: W) -> Self {
        let deflate = SPARE.take().unwrap_or_else(|| Compress::new(Compression::new(LEVEL), false));
        let mut buffer = Vec::with_capacity(BUFFER);
        buffer.extend_from_slice(&HEADER);
        Self { out, deflate, crc: Crc::new(), buffer }
    }

    /// Ends the file, and returns what it was written to.
    pub fn finish(mut self) -> io::Result<W> {
        self.deflate(&[], FlushCompress::Finish)?;
        self.buffer.extend_from_slice(&self.crc.sum().to_le_bytes());
        self.buffer.extend_from_slice(&self.crc.amount().to_le_bytes());
        self.out.write_all(&self.buffer)?;
        self.deflate.reset();
        SPARE.set(Some(self.deflate));
        Ok(self.out)
    }

    fn deflate(&mut self, mut bytes: &[u8], flush: FlushCompress) -> io::Result<()> {
        loop {
            if self.buffer.len() == self.buffer.capacity() {
                self.out.write_all(&self.buffer)?;
                self.buffer.clear();
            }
            let before = self.deflate.total_in();
            let status = self.deflate.compress_vec(bytes, &mut self.buffer, flush);
            let status = status.map_err(io::Error::other)?;
            let taken = usize::try_from(self.deflate.total_in() - before).unwrap_or(usize::MAX);
            bytes = bytes.get(taken..).unwrap_or_default();
            let is_done = match flush {
                FlushCompress::Finish => status == Status::StreamEnd,
                _ => bytes.is_empty(),
            };
            if is_done {
                return Ok(());
            }
        }
    }
}

impl<W: Write> Write for Gzip<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.deflate(bytes, FlushCompress::None)?;
        self.crc.update(bytes);
        Ok(bytes.len())
    }

    /// What is compressed together is written together.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn what_was_compressed_is_read_back_each_time() {
        // One that no compression makes smaller, one that is almost nothing, and nothing.
        let mut random = 1u64;
        let noise = (0..300_000).map(|_| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as u8
        });
        for original in [noise.collect(), vec![7; 1 << 20], Vec::new(), vec![1, 2, 3]] {
            let mut gzip = Gzip::new(Vec::new());
            for piece in original.chunks(70_001) {
                gzip.write_all(piece).expect("memory takes it");
            }
            let file = gzip.finish().expect("memory takes it");
            let mut read = Vec::new();
            flate2::read::GzDecoder::new(&*file).read_to_end(&mut read).expect("gzip");
            assert!(read == original, "{} bytes", original.len());
        }
    }
}

//! The native code of a function: one compilation or many, each in one piece or several.

use strata_bridge_protocol::field::CodeRange;

use crate::com::info::CodeRange as NativeRange;
use crate::session::Session;

/// Pieces of one compilation that are reported: the runtime splits code in two, hot and cold.
const MOST_PIECES: usize = 8;

/// The number of compilations that need no heap: one for each tier, and some for running loops.
const FEW: usize = 16;
/// More than a function can have: each needs a loop of its own.
const MOST: usize = 4096;

/// First bytes of code in a record: a prologue ends well within. The prologue of a method that is
/// entered in the middle of a loop copies its frame, and may be long.
const CODE_BYTES: usize = 96;
const OSR_CODE_BYTES: usize = 4096;

/// Where the compilations of one IL version of a function start.
pub struct Compilations {
    function: usize,
    rejit: usize,
    few: [usize; FEW],
    count: usize,
    /// All of them, when they are more than a few.
    many: Vec<usize>,
}

impl Compilations {
    pub fn of(session: &Session, function: usize, rejit: usize) -> Compilations {
        let mut found = Compilations { function, rejit, few: [0; FEW], count: 0, many: Vec::new() };
        let info = session.info();
        if info.version() < 9 {
            let mut pieces = [NativeRange::default(); 1];
            info.code_of_version(function, rejit, &mut pieces);
            found.few[0] = pieces[0].start;
            found.count = usize::from(found.few[0] != 0);
            return found;
        }
        match info.code_starts(function, rejit, &mut found.few) {
            Ok(count) => found.count = count,
            // A little more room: another may be compiled in between.
            Err(count) if count > FEW && count < MOST => {
                if found.many.try_reserve_exact(count + FEW).is_ok() {
                    found.many.resize(count + FEW, 0);
                    let count = info.code_starts(function, rejit, &mut found.many);
                    found.many.truncate(count.unwrap_or(0));
                }
            }
            Err(_) => {}
        }
        found
    }

    pub fn starts(&self) -> &[usize] {
        if self.many.is_empty() {
            self.few.get(..self.count).unwrap_or_default()
        } else {
            &self.many
        }
    }

    /// The code of the compilation that starts at `start`.
    pub fn code(&self, session: &Session, start: usize) -> Code {
        let mut pieces = [NativeRange::default(); MOST_PIECES];
        let count = if session.info().version() >= 9 {
            session.info().code_at(start, &mut pieces)
        } else {
            session.info().code_of_version(self.function, self.rejit, &mut pieces)
        };
        Code { pieces, count: count.unwrap_or(0) }
    }
}

/// The pieces of one compilation.
pub struct Code {
    pieces: [NativeRange; MOST_PIECES],
    count: usize,
}

/// Room for pieces as a record has them.
pub type Pieces<'a> = [CodeRange<'a>; MOST_PIECES];
pub const NO_PIECES: Pieces<'static> = [CodeRange { start: 0, size: 0, code: &[] }; MOST_PIECES];

impl Code {
    /// The code of a function without metadata, which is compiled once.
    pub fn of_dynamic(session: &Session, function: usize) -> Code {
        let mut pieces = [NativeRange::default(); MOST_PIECES];
        let count = session.info().code_of_version(function, 0, &mut pieces);
        Code { pieces, count: count.unwrap_or(0) }
    }

    fn pieces(&self) -> &[NativeRange] {
        self.pieces.get(..self.count).unwrap_or_default()
    }

    /// Where it lies: starts and sizes.
    pub fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        self.pieces().iter().map(|piece| (piece.start, piece.size))
    }

    /// Where the first piece starts.
    pub fn start(&self) -> Option<usize> {
        self.pieces().first().map(|piece| piece.start)
    }

    pub fn contains(&self, ip: u64) -> bool {
        self.pieces().iter().any(|piece| {
            (ip as usize).checked_sub(piece.start).is_some_and(|offset| offset < piece.size)
        })
    }

    pub fn replaces_a_loop(&self) -> bool {
        self.pieces().first().is_some_and(|piece| is_osr(code_bytes(piece, CODE_BYTES)))
    }

    /// The pieces with their first bytes.
    pub fn to_record<'a, 'c>(&self, room: &'a mut Pieces<'c>) -> &'a [CodeRange<'c>] {
        for (place, piece) in room.iter_mut().zip(self.pieces()) {
            let code = code_bytes(piece, CODE_BYTES);
            let code = if is_osr(code) { code_bytes(piece, OSR_CODE_BYTES) } else { code };
            *place = CodeRange {
                start: piece.start as u64,
                size: u32::try_from(piece.size).unwrap_or(u32::MAX),
                code,
            };
        }
        room.get(..self.count).unwrap_or_default()
    }
}

/// The first bytes of a piece of code.
fn code_bytes(piece: &NativeRange, most: usize) -> &'static [u8] {
    if piece.start == 0 {
        return &[];
    }
    // SAFETY: the runtime reports this as code of a live method, so it is mapped; it is readable in
    // every mode of the runtime (utilcode/executableallocator.cpp maps code read+execute), and it
    // is not written after it was published.
    unsafe { std::slice::from_raw_parts(piece.start as *const u8, piece.size.min(most)) }
}

/// Code that replaces a running loop's begins with reading the frame it takes over: `mov rax,
/// [rbp+n]` (src/coreclr/jit/codegenxarch.cpp, `genOSRHandleTier0CalleeSavedRegistersAndFrame`).
fn is_osr(code: &[u8]) -> bool {
    matches!(code, [0x48, 0x8b, 0x45 | 0x85, ..])
}

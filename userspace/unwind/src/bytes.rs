//! An unwind table as bytes: the on-disk cache, and the reply of the process that parses files
//! of others.
//!
//! Neither is trusted: a cache file may be damaged, and the parser may have been taken over by
//! the file it parsed. Invariant: what [`from_bytes`] accepts keeps every promise that the
//! kernel's search and the loader rely on; a table that lies harms its own file's stacks only.

use strata_abi::register;
use strata_abi::rule::{self, Kind, Packed, Rule};
use strata_abi::tables::{self, MAX_PIECE_PAGES, MAX_PIECE_ROWS, PAGE_SHIFT};
use strata_bytes::Cursor;
use xxhash_rust::xxh3::xxh3_64;

use crate::table::{Load, Piece, Statistics, UnwindTable};

const MAGIC: [u8; 8] = *b"strataUT";
/// Changes with this format, with the meaning of rules, and with how tables are built.
pub const VERSION: u32 = 9;

const HEADER: usize = 8 + 4 + 4 + 8 + 8;
const RULE_WORDS: usize = size_of::<Rule>() / 4;
const LOAD_WORDS: usize = 10;
const PIECE_WORDS: usize = 4;
const STATISTICS_WORDS: usize = 2 * Statistics::COUNT;
/// Pieces of a file at most; with [`MAX_PIECE_ROWS`] far above what limits let a build make.
const MAX_PIECES: usize = 1 << 16;
const MAX_LOADS: usize = 1 << 16;

/// Why bytes are not an unwind table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    #[error("not an unwind table")]
    Magic,
    #[error("an unwind table of another version")]
    Version,
    #[error("the unwind table's size is not what its header says")]
    Size,
    #[error("the unwind table's digest does not fit its content")]
    Digest,
    #[error("the unwind table breaks a promise: {0}")]
    Content(&'static str),
}

/// The table as bytes: header (magic, version, counts, size, digest of the rest), then words.
#[must_use]
pub fn to_bytes(table: &UnwindTable) -> Vec<u8> {
    let words = STATISTICS_WORDS
        + 3
        + table.rules.len() * RULE_WORDS
        + table.loads.len() * LOAD_WORDS
        + table.pieces.len() * PIECE_WORDS
        + (table.kernel_bytes() / 4) as usize;
    let mut bytes = Vec::with_capacity(HEADER + words * 4);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&((HEADER + words * 4) as u64).to_le_bytes());
    bytes.extend_from_slice(&[0; 8]);
    let mut writer = Writer(bytes);
    for value in table.statistics.to_array() {
        writer.u64(value);
    }
    writer.u32(table.rules.len() as u32);
    writer.u32(table.loads.len() as u32);
    writer.u32(table.pieces.len() as u32);
    table.rules.iter().for_each(|rule| writer.rule(rule));
    for load in &table.loads {
        writer.u64(load.offset);
        writer.u64(load.file_size);
        writer.u64(load.address);
        writer.u64(load.memory_size);
        writer.u64(u64::from(load.executable));
    }
    for piece in &table.pieces {
        writer.u64(piece.first_page);
        writer.u32(piece.pages);
        writer.u32(piece.rows.len() as u32);
    }
    for piece in &table.pieces {
        writer.words(&piece.index);
        writer.words(&piece.rows);
    }
    let mut bytes = writer.0;
    let digest = xxh3_64(bytes.get(HEADER..).unwrap_or_default());
    if let Some(place) = bytes.get_mut(HEADER - 8..HEADER) {
        place.copy_from_slice(&digest.to_le_bytes());
    }
    bytes
}

/// Reads a table back and checks all of it.
pub fn from_bytes(bytes: &[u8]) -> Result<UnwindTable, FormatError> {
    let (header, content) = bytes.split_at_checked(HEADER).ok_or(FormatError::Magic)?;
    let mut reader = Reader(Cursor::new(header));
    if reader.take(8)? != MAGIC {
        return Err(FormatError::Magic);
    }
    if reader.u32()? != VERSION {
        return Err(FormatError::Version);
    }
    reader.u32()?;
    if reader.u64()? != bytes.len() as u64 {
        return Err(FormatError::Size);
    }
    if reader.u64()? != xxh3_64(content) {
        return Err(FormatError::Digest);
    }
    let mut reader = Reader(Cursor::new(content));
    let mut statistics = [0; Statistics::COUNT];
    for value in &mut statistics {
        *value = reader.u64()?;
    }
    let (rules, loads, pieces) = (reader.u32()?, reader.u32()?, reader.u32()?);
    if rules as usize > rule::MAX_RULES as usize
        || loads as usize > MAX_LOADS
        || pieces as usize > MAX_PIECES
    {
        return Err(FormatError::Content("too many rules, segments or pieces"));
    }
    let rules = reader.rules(rules)?;
    let loads = reader.loads(loads)?;
    let pieces = reader.pieces(pieces, rules.len())?;
    if !reader.0.is_empty() {
        return Err(FormatError::Size);
    }
    Ok(UnwindTable { rules, pieces, loads, statistics: Statistics::from_array(statistics) })
}

/// For fuzzing: any bytes as the content behind a right header.
pub fn fuzz_content(content: &[u8]) {
    let mut bytes = Vec::from(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&((HEADER + content.len()) as u64).to_le_bytes());
    bytes.extend_from_slice(&xxh3_64(content).to_le_bytes());
    bytes.extend_from_slice(content);
    if let Ok(table) = from_bytes(&bytes) {
        for piece in &table.pieces {
            for address in (piece.start()..piece.end()).step_by(61) {
                assert!(table.rules.contains(&table.lookup(address)));
            }
        }
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn words(&mut self, words: &[u32]) {
        self.0.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }

    fn rule(&mut self, rule: &Rule) {
        self.u32(rule.packed.0);
        self.0.extend_from_slice(&[rule.base, rule.flags, rule.ra_register, rule.index_register]);
        let offsets =
            [rule.cfa_offset, rule.deref_add, rule.fp_offset, rule.extra_offset, rule.ra_offset];
        offsets.iter().for_each(|offset| self.u32(*offset as u32));
        self.u32(rule.second);
    }
}

struct Reader<'a>(Cursor<'a>);

impl<'a> Reader<'a> {
    fn take(&mut self, size: usize) -> Result<&'a [u8], FormatError> {
        self.0.take(size).ok_or(FormatError::Size)
    }

    fn u32(&mut self) -> Result<u32, FormatError> {
        self.0.u32().ok_or(FormatError::Size)
    }

    fn u64(&mut self) -> Result<u64, FormatError> {
        self.0.u64().ok_or(FormatError::Size)
    }

    fn i32(&mut self) -> Result<i32, FormatError> {
        self.u32().map(|value| value as i32)
    }

    /// Bytes are taken before memory is: a count alone cannot make anything large.
    fn words(&mut self, count: usize) -> Result<Box<[u32]>, FormatError> {
        let bytes = self.take(count.checked_mul(4).ok_or(FormatError::Size)?)?;
        let (words, _) = bytes.as_chunks::<4>();
        Ok(words.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }

    fn rules(&mut self, count: u32) -> Result<Vec<Rule>, FormatError> {
        let mut rules = Vec::new();
        for number in 0..count {
            let packed = Packed(self.u32()?);
            let [base, flags, ra_register, index_register] =
                self.0.array().ok_or(FormatError::Size)?;
            let rule = Rule {
                packed,
                base,
                flags,
                ra_register,
                index_register,
                cfa_offset: self.i32()?,
                deref_add: self.i32()?,
                fp_offset: self.i32()?,
                extra_offset: self.i32()?,
                ra_offset: self.i32()?,
                second: self.u32()?,
            };
            check_rule(&rule, number)?;
            rules.push(rule);
        }
        if rules.first().is_none_or(|rule| *rule != Rule::simple(Packed::NONE)) {
            return Err(FormatError::Content("rule 0 is not \"none\""));
        }
        Ok(rules)
    }

    fn loads(&mut self, count: u32) -> Result<Vec<Load>, FormatError> {
        let mut loads = Vec::new();
        for _ in 0..count {
            loads.push(Load {
                offset: self.u64()?,
                file_size: self.u64()?,
                address: self.u64()?,
                memory_size: self.u64()?,
                executable: self.u64()? != 0,
            });
        }
        Ok(loads)
    }

    fn pieces(&mut self, count: u32, rules: usize) -> Result<Vec<Piece>, FormatError> {
        let heads = self.take((count as usize).saturating_mul(PIECE_WORDS * 4))?;
        let mut heads = Reader(Cursor::new(heads));
        let mut pieces = Vec::new();
        let mut free_from = 0;
        for _ in 0..count {
            let (first_page, pages, rows) = (heads.u64()?, heads.u32()?, heads.u32()?);
            if pages == 0 || pages > MAX_PIECE_PAGES || rows == 0 || rows > MAX_PIECE_ROWS {
                return Err(FormatError::Content("a piece of a size that none has"));
            }
            let end = first_page.saturating_add(u64::from(pages));
            if first_page < free_from || end > u64::MAX >> PAGE_SHIFT {
                return Err(FormatError::Content("pieces overlap or do not ascend"));
            }
            free_from = end;
            let index = self.words(pages as usize + 1)?;
            let rows = self.words(rows as usize)?;
            let piece = Piece { first_page, pages, index, rows };
            check_piece(&piece, rules)?;
            pieces.push(piece);
        }
        Ok(pieces)
    }
}

fn check_rule(rule: &Rule, number: u32) -> Result<(), FormatError> {
    const KINDS: u32 = Kind::Goroutine as u32;
    let kind = rule.packed.kind();
    let known = if kind == Kind::Extended as u32 {
        rule.packed.field() == number
            && rule.base < register::COUNT
            && rule.ra_register < register::COUNT
            && rule.index_register < register::COUNT
            && match (rule.flags & rule::FLAG_INDEXED, rule.flags & rule::FLAG_DEREF_TWICE) {
                (0, 0) => (rule.index_register, rule.second) == (0, 0),
                (0, _) => rule.index_register == 0 && rule.flags & rule::FLAG_DEREF != 0,
                (_, twice) => twice == 0,
            }
    } else {
        let field = rule.packed.field();
        let field_is_known = if kind == Kind::Sp as u32 || kind == Kind::Fp as u32 {
            field >> 22 == 0
        } else if kind == Kind::Extra as u32 {
            rule.packed.0 >> 26 == 0
        } else if kind == Kind::Plt as u32 {
            field < 16
        } else {
            kind <= KINDS && field == 0
        };
        field_is_known && *rule == Rule::simple(rule.packed)
    };
    if known { Ok(()) } else { Err(FormatError::Content("a rule of a shape that none has")) }
}

/// The index counts the rows page by page, and the rows of each page ascend within it.
fn check_piece(piece: &Piece, rules: usize) -> Result<(), FormatError> {
    const ROWS: FormatError = FormatError::Content("rows that do not ascend within their page");
    const INDEX: FormatError = FormatError::Content("an index that does not fit its rows");
    if piece.index.first() != Some(&0) || piece.index.last() != Some(&(piece.rows.len() as u32)) {
        return Err(INDEX);
    }
    for (pair, page) in piece.index.windows(2).zip(0_u64..) {
        let [from, to] = pair else { continue };
        let rows = piece.rows.get(*from as usize..*to as usize).ok_or(INDEX)?;
        let page_bits = ((piece.first_page.wrapping_add(page)) as u32 & 0xff) << PAGE_SHIFT;
        let mut least = page_bits;
        for row in rows {
            let pc = row & 0xffff;
            if pc < least || pc & 0xff00 != page_bits {
                return Err(ROWS);
            }
            least = pc + 1;
            if usize::from(tables::row_rule(*row)) >= rules {
                return Err(FormatError::Content("a row of a rule that is not there"));
            }
        }
    }
    // Row 0 lies at the start, so that every address has a row at or before it.
    match piece.rows.first() {
        Some(row) if row & 0xffff == (piece.first_page as u32 & 0xff) << PAGE_SHIFT => Ok(()),
        _ => Err(ROWS),
    }
}

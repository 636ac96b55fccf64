//! ECMA-335 metadata: streams, heaps and tables of a module or a portable PDB.
//!
//! [`Layout`] holds the offsets and no bytes: it is as good for a file that was read as for what a
//! runtime has mapped. [`Reader`] puts bytes to it; rows are looked at where they are.
//!
//! Invariant: every stream and table of a layout lies within the bytes it was made from; a cell
//! outside of its table is `None`.
//!
//! References: ECMA-335 II.22 to II.24; `docs/design/specs/PortablePdb-Metadata.md`.

use strata_bytes::{Cursor, array, index, u16_at, u32_at, u64_at, until_nul};

use crate::schema::{
    Column, RESOLUTION_SCOPE, SCHEMA, TABLES, TYPE_DEF_OR_REF, TYPE_OR_METHOD_DEF, table,
};
use crate::{row_of, table_of, token};

const MAX_STREAMS: u16 = 32;
/// The most rows a token can name.
const MAX_ROWS: u32 = 0x00ff_ffff;
/// More of a string is not read: names in metadata have at most 1,023 characters (`corhdr.h`,
/// `MAX_CLASS_NAME`).
const MAX_STRING: usize = 4096;

/// Why metadata could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    NotMetadata,
    /// A stream or a table goes beyond the bytes.
    Cut,
    /// A table has more rows than tokens can name.
    TooManyRows,
    /// Written by compilers only while a program is edited and continued.
    Uncompressed,
    UnknownTable,
}

/// The tables whose rows can be read. Of the others only the size matters.
const READ: [u8; 16] = [
    table::MODULE,
    table::TYPE_REF,
    table::TYPE_DEF,
    table::FIELD,
    table::METHOD_DEF,
    table::MEMBER_REF,
    table::TYPE_SPEC,
    table::IMPL_MAP,
    table::ASSEMBLY,
    table::ASSEMBLY_REF,
    table::NESTED_CLASS,
    table::GENERIC_PARAM,
    table::METHOD_SPEC,
    table::DOCUMENT,
    table::METHOD_DEBUG_INFORMATION,
    table::STATE_MACHINE_METHOD,
];
const NOT_READ: u8 = 0xff;

/// Position in [`READ`] by table number.
const SLOTS: [u8; TABLES] = {
    let mut slots = [NOT_READ; TABLES];
    let mut slot = 0;
    while slot < READ.len() {
        slots[READ[slot] as usize] = slot as u8;
        slot += 1;
    }
    slots
};

/// A range of the metadata's bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    start: u32,
    end: u32,
}

impl Stream {
    fn of(self, bytes: &[u8]) -> &[u8] {
        bytes.get(index(self.start)..index(self.end)).unwrap_or_default()
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Table {
    start: u32,
    rows: u32,
    row_bytes: u8,
    columns: u8,
    /// Columns of four bytes, by bit; the others have two.
    wide: u16,
}

/// A column of a table.
#[derive(Clone, Copy)]
struct Cells {
    /// Of its cell in the first row.
    start: usize,
    row_bytes: usize,
    wide: bool,
}

impl Cells {
    /// Rows count from 1, and are known to be in the table.
    #[inline]
    fn get(self, bytes: &[u8], row: u32) -> Option<u32> {
        let at = self.start + index(row.wrapping_sub(1)) * self.row_bytes;
        if self.wide { u32_at(bytes, at) } else { u16_at(bytes, at).map(u32::from) }
    }
}

impl Table {
    #[inline]
    fn cells(&self, column: usize) -> Option<Cells> {
        if column >= usize::from(self.columns) {
            return None;
        }
        let wide_before = self.wide & (1_u16 << column).wrapping_sub(1);
        Some(Cells {
            start: index(self.start) + 2 * column + 2 * index(wide_before.count_ones()),
            row_bytes: self.row_bytes.into(),
            wide: self.wide >> column & 1 != 0,
        })
    }

    #[inline]
    fn cell(&self, bytes: &[u8], row: u32, column: usize) -> Option<u32> {
        if row == 0 || row > self.rows {
            return None;
        }
        self.cells(column)?.get(bytes, row)
    }
}

/// Where the streams and tables of metadata lie.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    strings: Stream,
    blobs: Stream,
    guids: Stream,
    pdb: Stream,
    tables: [Table; READ.len()],
}

impl Layout {
    /// # Errors
    /// When the bytes are no metadata, or their streams or tables lie outside of them.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let mut cursor = Cursor::new(bytes);
        if cursor.array() != Some(*b"BSJB") {
            return Err(Error::NotMetadata);
        }
        let mut layout = Self {
            strings: Stream::default(),
            blobs: Stream::default(),
            guids: Stream::default(),
            pdb: Stream::default(),
            tables: [Table::default(); READ.len()],
        };
        let tables = layout.read_streams(bytes, cursor).ok_or(Error::Cut)??;
        let mut rows = [0; TABLES];
        outer_rows(layout.pdb.of(bytes), &mut rows).ok_or(Error::Cut)?;
        layout.read_tables(tables, bytes, &mut rows).ok_or(Error::Cut)??;
        Ok(layout)
    }

    /// Returns the stream of the tables. `None` is [`Error::Cut`], here and below.
    fn read_streams(
        &mut self,
        bytes: &[u8],
        mut cursor: Cursor<'_>,
    ) -> Option<Result<Stream, Error>> {
        cursor.take(8)?;
        let version = cursor.u32()?;
        cursor.take(index(version))?;
        cursor.u16()?;
        let mut tables = None;
        for _ in 0..cursor.u16()?.min(MAX_STREAMS) {
            let (start, size) = (cursor.u32()?, cursor.u32()?);
            let name = until_nul(cursor.rest().get(..32).unwrap_or(cursor.rest()));
            // With its NUL, to the next multiple of four.
            cursor.take((name.len() / 4 + 1) * 4)?;
            let stream = Stream { start, end: start.checked_add(size)? };
            if index(stream.end) > bytes.len() {
                return None;
            }
            match name {
                b"#Strings" => self.strings = stream,
                b"#Blob" => self.blobs = stream,
                b"#GUID" => self.guids = stream,
                b"#Pdb" => self.pdb = stream,
                b"#~" => tables = Some(stream),
                b"#-" => return Some(Err(Error::Uncompressed)),
                _ => {}
            }
        }
        Some(tables.ok_or(Error::NotMetadata))
    }

    /// `sizing` are the rows of the module that a PDB belongs to, to which the PDB's rows point.
    fn read_tables(
        &mut self,
        stream: Stream,
        bytes: &[u8],
        sizing: &mut [u32; TABLES],
    ) -> Option<Result<(), Error>> {
        let mut cursor = Cursor::new(stream.of(bytes));
        let header = cursor.take(24)?;
        let heaps = header.get(6).copied()?;
        let valid = u64_at(header, 8)?;
        let counts = cursor;
        for (number, size) in sizing.iter_mut().enumerate() {
            if valid >> number & 1 != 0 {
                let rows = cursor.u32()?;
                if rows > MAX_ROWS {
                    return Some(Err(Error::TooManyRows));
                }
                *size = rows.max(*size);
            }
        }
        // An undocumented word, written by some tools (`md/inc/metamodel.h`, `EXTRA_DATA`).
        if heaps & 0x40 != 0 {
            cursor.u32()?;
        }
        let mut start = stream.end.checked_sub(u32::try_from(cursor.rest().len()).ok()?)?;
        let mut counts = counts;
        for (number, columns) in SCHEMA.iter().enumerate() {
            let rows = if valid >> number & 1 != 0 { counts.u32()? } else { 0 };
            if rows > 0 && columns.is_empty() {
                return Some(Err(Error::UnknownTable));
            }
            // The list of a type's methods would name rows of this table instead.
            if rows > 0 && number == usize::from(table::METHOD_PTR) {
                return Some(Err(Error::Uncompressed));
            }
            let found = lay_out(columns, start, rows, heaps, sizing);
            start = start.checked_add(rows.checked_mul(found.row_bytes.into())?)?;
            if start > stream.end {
                return None;
            }
            let slot = SLOTS.get(number).map_or(usize::MAX, |slot| usize::from(*slot));
            if let Some(place) = self.tables.get_mut(slot) {
                *place = found;
            }
        }
        Some(Ok(()))
    }

    #[inline]
    fn table(&self, number: u8) -> Option<&Table> {
        let slot = *SLOTS.get(usize::from(number))?;
        debug_assert!(slot != NOT_READ, "table {number:#x} is not read");
        self.tables.get(usize::from(slot))
    }

    /// The bytes that this is the layout of.
    #[inline]
    #[must_use]
    pub fn on<'l, 'b>(&'l self, bytes: &'b [u8]) -> Reader<'l, 'b> {
        Reader { layout: self, bytes }
    }
}

/// The row counts of the module that a `#Pdb` stream belongs to.
fn outer_rows(stream: &[u8], rows: &mut [u32; TABLES]) -> Option<()> {
    if stream.is_empty() {
        return Some(());
    }
    let referenced = u64_at(stream, 24)?;
    let mut cursor = Cursor::new(stream.get(32..)?);
    for (number, rows) in rows.iter_mut().enumerate() {
        if referenced >> number & 1 != 0 {
            *rows = cursor.u32()?;
        }
    }
    Some(())
}

fn lay_out(columns: &[Column], start: u32, rows: u32, heaps: u8, sizing: &[u32; TABLES]) -> Table {
    let rows_of = |table: u8| sizing.get(usize::from(table)).copied().unwrap_or(0);
    let mut found = Table { start, rows, ..Table::default() };
    for (position, column) in columns.iter().enumerate() {
        let wide = match column {
            Column::Plain(bytes) => *bytes == 4,
            Column::String => heaps & 1 != 0,
            Column::Guid => heaps & 2 != 0,
            Column::Blob => heaps & 4 != 0,
            Column::Row(table) => rows_of(*table) > 0xffff,
            Column::Coded(coded) => {
                let most = coded.tables.iter().map(|table| rows_of(*table)).max().unwrap_or(0);
                most > 0xffff >> coded.bits
            }
        };
        found.wide |= u16::from(wide) << position;
        found.columns += 1;
        found.row_bytes += if wide { 4 } else { 2 };
    }
    found
}

/// A TypeDef.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeDefinition<'b> {
    pub namespace: &'b [u8],
    pub name: &'b [u8],
    /// Token of the base type; 0 for none.
    pub extends: u32,
    /// It is nested in another type.
    pub nested: bool,
}

/// A TypeRef.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeReference<'b> {
    pub namespace: &'b [u8],
    pub name: &'b [u8],
    /// Token of the enclosing type, the module or the assembly.
    pub scope: u32,
}

/// The metadata of one module: bytes and their layout.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'l, 'b> {
    layout: &'l Layout,
    bytes: &'b [u8],
}

impl<'l, 'b> Reader<'l, 'b> {
    /// How many rows a table has.
    #[inline]
    #[must_use]
    pub fn rows(&self, table: u8) -> u32 {
        self.layout.table(table).map_or(0, |table| table.rows)
    }

    /// The value in a column of a row; rows count from 1.
    #[inline]
    #[must_use]
    pub fn cell(&self, table: u8, row: u32, column: usize) -> Option<u32> {
        self.layout.table(table)?.cell(self.bytes, row, column)
    }

    /// The first row whose value in a column that rises is not below `wanted`; one past the last
    /// when there is none. In a table that does not rise it is some row.
    #[must_use]
    pub fn lower_bound(&self, table: u8, column: usize, wanted: u32) -> u32 {
        let Some(table) = self.layout.table(table) else { return 1 };
        let Some(cells) = table.cells(column) else { return 1 };
        let (mut low, mut high) = (1, table.rows.saturating_add(1));
        while low < high {
            let middle = low.midpoint(high);
            if cells.get(self.bytes, middle).is_some_and(|value| value < wanted) {
                low = middle.saturating_add(1);
            } else {
                high = middle;
            }
        }
        low
    }

    /// Whether there is a row with this token.
    #[must_use]
    pub fn has(&self, token: u32) -> bool {
        let found = SLOTS.get(usize::from(table_of(token))).is_some_and(|slot| *slot != NOT_READ);
        found && (1..=self.rows(table_of(token))).contains(&row_of(token))
    }

    /// The bytes of a string, without its NUL.
    #[must_use]
    pub fn string(&self, offset: u32) -> Option<&'b [u8]> {
        let rest = self.layout.strings.of(self.bytes).get(index(offset)..)?;
        Some(until_nul(rest.get(..MAX_STRING).unwrap_or(rest)))
    }

    #[must_use]
    pub fn blob(&self, offset: u32) -> Option<&'b [u8]> {
        let mut cursor = Cursor::new(self.layout.blobs.of(self.bytes).get(index(offset)..)?);
        let length = crate::compressed::unsigned(&mut cursor)?;
        cursor.take(index(length))
    }

    fn guid(&self, number: u32) -> Option<[u8; 16]> {
        let at = index(number.checked_sub(1)?).checked_mul(16)?;
        array(self.layout.guids.of(self.bytes), at)
    }

    /// The stream that only a portable PDB has; else empty.
    #[must_use]
    pub fn pdb_stream(&self) -> &'b [u8] {
        self.layout.pdb.of(self.bytes)
    }

    /// The identity of the module's build (MVID).
    #[must_use]
    pub fn mvid(&self) -> Option<[u8; 16]> {
        self.guid(self.cell(table::MODULE, 1, 2)?)
    }

    #[must_use]
    pub fn type_def(&self, token: u32) -> Option<TypeDefinition<'b>> {
        const VISIBILITY: u32 = 7;
        const NESTED_PUBLIC: u32 = 2;
        let cell = |column| self.cell(table::TYPE_DEF, row_of(token), column);
        Some(TypeDefinition {
            name: self.string(cell(1)?)?,
            namespace: self.string(cell(2)?)?,
            extends: TYPE_DEF_OR_REF.token(cell(3)?)?,
            nested: cell(0)? & VISIBILITY >= NESTED_PUBLIC,
        })
    }

    #[must_use]
    pub fn type_ref(&self, token: u32) -> Option<TypeReference<'b>> {
        let cell = |column| self.cell(table::TYPE_REF, row_of(token), column);
        Some(TypeReference {
            scope: RESOLUTION_SCOPE.token(cell(0)?)?,
            name: self.string(cell(1)?)?,
            namespace: self.string(cell(2)?)?,
        })
    }

    /// The signature of a TypeSpec (ECMA-335 II.23.2.14).
    #[must_use]
    pub fn type_spec(&self, token: u32) -> Option<&'b [u8]> {
        self.blob(self.cell(table::TYPE_SPEC, row_of(token), 0)?)
    }

    #[must_use]
    pub fn method_name(&self, token: u32) -> Option<&'b [u8]> {
        self.string(self.cell(table::METHOD_DEF, row_of(token), 3)?)
    }

    #[must_use]
    pub fn field_name(&self, token: u32) -> Option<&'b [u8]> {
        if table_of(token) != table::FIELD {
            return None;
        }
        self.string(self.cell(table::FIELD, row_of(token), 1)?)
    }

    pub fn method_signature(&self, token: u32) -> Option<&'b [u8]> {
        self.blob(self.cell(table::METHOD_DEF, row_of(token), 4)?)
    }

    /// The TypeDef whose list of methods has this one.
    #[must_use]
    pub fn declaring_type(&self, method: u32) -> Option<u32> {
        // Types without methods begin where the next one does, so the last that fits is it.
        let after = self.lower_bound(table::TYPE_DEF, 5, row_of(method).saturating_add(1));
        let owner = after.checked_sub(1).filter(|owner| *owner > 0)?;
        Some(token(table::TYPE_DEF, owner))
    }

    /// The TypeDef that a nested one is in.
    #[must_use]
    pub fn enclosing_type(&self, nested: u32) -> Option<u32> {
        let row = row_of(nested);
        let at = self.lower_bound(table::NESTED_CLASS, 0, row);
        let outer = self.cell(table::NESTED_CLASS, at, 1)?;
        (self.cell(table::NESTED_CLASS, at, 0)? == row).then_some(token(table::TYPE_DEF, outer))
    }

    /// Position and name of each generic parameter of a TypeDef or MethodDef. A nested type repeats
    /// those of the types around it.
    pub fn generic_parameters(
        self,
        owner: u32,
    ) -> impl Iterator<Item = (u32, &'b [u8])> + use<'l, 'b> {
        let owner = TYPE_OR_METHOD_DEF.encode(owner);
        let first =
            owner.map_or(u32::MAX, |owner| self.lower_bound(table::GENERIC_PARAM, 2, owner));
        (first..=self.rows(table::GENERIC_PARAM)).map_while(move |row| {
            let cell = |column| self.cell(table::GENERIC_PARAM, row, column);
            (cell(2) == owner).then_some(())?;
            Some((cell(0)?, self.string(cell(3)?)?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Metadata with one stream of tables: so many modules, and what follows the counts.
    fn metadata(valid: u64, counts: &[u32], rows: usize) -> Vec<u8> {
        let mut tables = Vec::from([0, 0, 0, 0, 2, 0, 0, 1]);
        tables.extend_from_slice(&valid.to_le_bytes());
        tables.extend_from_slice(&[0; 8]);
        tables.extend(counts.iter().flat_map(|count| count.to_le_bytes()));
        tables.resize(tables.len() + rows, 7);
        let mut bytes = Vec::from(*b"BSJB\x01\0\x01\0\0\0\0\0\x04\0\0\0v4\0\0\0\0\x01\0");
        let start = u32::try_from(bytes.len() + 12).unwrap();
        bytes.extend_from_slice(&start.to_le_bytes());
        bytes.extend_from_slice(&u32::try_from(tables.len()).unwrap().to_le_bytes());
        bytes.extend_from_slice(b"#~\0\0");
        bytes.extend_from_slice(&tables);
        bytes
    }

    #[test]
    fn tables_must_lie_within_their_stream() {
        let whole = metadata(1, &[2], 20);
        let layout = Layout::parse(&whole).unwrap();
        let reader = layout.on(&whole);
        assert_eq!(reader.rows(table::MODULE), 2);
        assert_eq!(reader.cell(table::MODULE, 2, 4), Some(0x0707));
        assert_eq!(reader.cell(table::MODULE, 3, 0), None);
        assert_eq!(reader.cell(table::MODULE, 1, 5), None);
        assert_eq!(reader.cell(table::MODULE, 0, 0), None);
        assert_eq!(Layout::parse(&metadata(1, &[2], 19)).unwrap_err(), Error::Cut);
        assert_eq!(Layout::parse(&metadata(1, &[], 0)).unwrap_err(), Error::Cut);
        assert_eq!(Layout::parse(&metadata(1, &[u32::MAX], 20)).unwrap_err(), Error::TooManyRows);
        assert_eq!(Layout::parse(&metadata(1 << 63, &[1], 20)).unwrap_err(), Error::UnknownTable);
        assert_eq!(Layout::parse(&metadata(1 << 5, &[1], 20)).unwrap_err(), Error::Uncompressed);
    }

    #[test]
    fn metadata_that_is_cut_anywhere_is_refused() {
        let whole = metadata(1, &[2], 20);
        for length in 0..whole.len() {
            assert!(Layout::parse(&whole[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn a_layout_takes_little_memory() {
        // The bridge keeps one for every module of an application.
        assert!(size_of::<Layout>() <= 240, "{}", size_of::<Layout>());
    }
}

//! Rows of metadata tables, read where they are.
//!
//! Invariant: every table lies within its stream; a cell outside of its table is `None`.

use super::schema::{Column, MAX_COLUMNS, SCHEMA, TABLES};
use crate::Error;
use crate::bytes::{Cursor, index, u16_at, u32_at};

/// The most rows a token can name.
const MAX_ROWS: u32 = 0x00ff_ffff;
const WHAT: &str = "metadata tables";

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    offset: u8,
    wide: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Layout {
    /// In the bytes of the metadata.
    start: usize,
    row_bytes: usize,
    cells: [Cell; MAX_COLUMNS],
}

/// Where every row is.
#[derive(Debug)]
pub(crate) struct Tables {
    rows: [u32; TABLES],
    layouts: [Layout; TABLES],
}

impl Tables {
    /// `bytes` are the whole metadata, of which the `stream` holds tables. `outer_rows` are those
    /// of the module that a PDB belongs to, to which the PDB's rows point.
    pub fn parse(
        bytes: &[u8],
        stream: std::ops::Range<usize>,
        outer_rows: &[u32; TABLES],
    ) -> Result<Self, Error> {
        let cut = || Error::Cut { what: WHAT };
        let mut cursor = Cursor::new(bytes.get(stream.clone()).ok_or_else(cut)?);
        let header = cursor.take(24).ok_or_else(cut)?;
        let heaps = header.get(6).copied().unwrap_or_default();
        let valid = crate::bytes::u64_at(header, 8).ok_or_else(cut)?;
        let mut rows = [0; TABLES];
        for (number, rows) in rows.iter_mut().enumerate() {
            if valid >> number & 1 != 0 {
                *rows = cursor.u32().ok_or_else(cut)?;
                if *rows > MAX_ROWS {
                    return Err(Error::Damaged { what: WHAT });
                }
            }
        }
        // An undocumented word, written by some obfuscators (System.Reflection.Metadata).
        if heaps & 0x40 != 0 {
            cursor.u32().ok_or_else(cut)?;
        }
        let mut start = stream.end.saturating_sub(cursor.rest().len());
        let mut sizing = rows;
        for (size, outer) in sizing.iter_mut().zip(outer_rows) {
            *size = (*size).max(*outer);
        }
        let mut layouts = [Layout::default(); TABLES];
        for ((layout, columns), rows) in layouts.iter_mut().zip(SCHEMA).zip(rows) {
            if rows > 0 && columns.is_empty() {
                return Err(Error::Foreign { what: WHAT, form: "an unknown table".into() });
            }
            *layout = lay_out(columns, start, heaps, &sizing);
            let size = layout.row_bytes.checked_mul(index(rows)).ok_or_else(cut)?;
            start = start.checked_add(size).filter(|end| *end <= stream.end).ok_or_else(cut)?;
        }
        Ok(Self { rows, layouts })
    }

    pub fn rows(&self, table: u8) -> u32 {
        self.rows.get(usize::from(table)).copied().unwrap_or(0)
    }

    /// The value in a column of a row; rows count from 1.
    pub fn cell(&self, bytes: &[u8], table: u8, row: u32, column: usize) -> Option<u32> {
        if row == 0 || row > self.rows(table) {
            return None;
        }
        let layout = self.layouts.get(usize::from(table))?;
        let cell = layout.cells.get(column)?;
        let at = index(row.checked_sub(1)?).checked_mul(layout.row_bytes)?;
        let at = layout.start.checked_add(at)?.checked_add(cell.offset.into())?;
        if cell.wide { u32_at(bytes, at) } else { u16_at(bytes, at).map(u32::from) }
    }

    /// The first row whose value in a column that rises is not below `wanted`; one past the last
    /// when there is none. In a table that does not rise it is some row.
    pub fn lower_bound(&self, bytes: &[u8], table: u8, column: usize, wanted: u32) -> u32 {
        let (mut low, mut high) = (1, self.rows(table).saturating_add(1));
        while low < high {
            let middle = low.midpoint(high);
            if self.cell(bytes, table, middle, column).is_some_and(|value| value < wanted) {
                low = middle.saturating_add(1);
            } else {
                high = middle;
            }
        }
        low
    }
}

fn lay_out(columns: &[Column], start: usize, heaps: u8, rows: &[u32; TABLES]) -> Layout {
    let rows_of = |table: u8| rows.get(usize::from(table)).copied().unwrap_or(0);
    let mut layout = Layout { start, ..Layout::default() };
    let mut offset = 0_u8;
    for (cell, column) in layout.cells.iter_mut().zip(columns) {
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
        *cell = Cell { offset, wide };
        offset = offset.saturating_add(if wide { 4 } else { 2 });
    }
    layout.row_bytes = offset.into();
    layout
}

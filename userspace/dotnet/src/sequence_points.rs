//! Sequence points: which IL of a method came from which line.
//!
//! Reference: "Sequence Points Blob" in `docs/design/specs/PortablePdb-Metadata.md`.

use strata_bytes::Cursor;
use strata_ecma::compressed::{signed, unsigned};

/// IL from an offset on, and its source location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequencePoint {
    pub il_offset: u32,
    /// Row of the document.
    pub document: u32,
    /// 0 for a hidden point: IL that came from no line.
    pub line: u32,
}

impl SequencePoint {
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        self.line == 0
    }
}

/// More bytes of one method are not read; those of a long method have some thousands.
const MAX_BLOB: usize = 1 << 20;

/// The points of a blob, as far as it can be read. `document` is that of the method's row, 0 when
/// the blob names it.
pub(crate) fn decode(blob: &[u8], document: u32) -> Vec<SequencePoint> {
    let mut points = Vec::new();
    let _ = decode_into(blob.get(..MAX_BLOB).unwrap_or(blob), document, &mut points);
    points
}

fn decode_into(blob: &[u8], document: u32, points: &mut Vec<SequencePoint>) -> Option<()> {
    let mut cursor = Cursor::new(blob);
    let mut document = document;
    // The signature of the local variables.
    unsigned(&mut cursor)?;
    if document == 0 {
        document = unsigned(&mut cursor)?;
    }
    let mut il_offset = 0_u32;
    // Of the last point that is not hidden.
    let mut start: Option<(u32, u32)> = None;
    while !cursor.is_empty() {
        let delta = unsigned(&mut cursor)?;
        if delta == 0 && !points.is_empty() {
            document = unsigned(&mut cursor)?;
            continue;
        }
        il_offset = il_offset.checked_add(delta)?;
        let lines = unsigned(&mut cursor)?;
        let columns = if lines == 0 {
            i64::from(unsigned(&mut cursor)?)
        } else {
            signed(&mut cursor)?.into()
        };
        if lines == 0 && columns == 0 {
            points.push(SequencePoint { il_offset, document, line: 0 });
            continue;
        }
        let (line, column) = match start {
            None => (unsigned(&mut cursor)?, unsigned(&mut cursor)?),
            Some((line, column)) => (
                line.checked_add_signed(signed(&mut cursor)?)?,
                column.checked_add_signed(signed(&mut cursor)?)?,
            ),
        };
        start = Some((line, column));
        points.push(SequencePoint { il_offset, document, line });
    }
    Some(())
}

/// The point that the runtime shows in a stack trace: the last one at or before the offset that is
/// not hidden (`StackTraceSymbols.GetSourceLineInfo`, System.Diagnostics.StackTrace).
#[must_use]
pub fn point_at(points: &[SequencePoint], il_offset: u32) -> Option<SequencePoint> {
    points
        .iter()
        .take_while(|point| point.il_offset <= il_offset)
        .filter(|point| !point.is_hidden())
        .last()
        .copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_with_hidden_points_and_two_documents_is_read() {
        // Locals 1, document 3; IL 0 line 10 column 5, one line of 8 columns; IL 2 hidden;
        // document 4; IL 6 two lines further.
        let blob = [1, 3, 0, 0, 8, 10, 5, 2, 0, 0, 0, 4, 4, 0, 8, 4, 0];
        let points = decode(&blob, 0);
        let point = |il_offset, document, line| SequencePoint { il_offset, document, line };
        assert_eq!(points, [point(0, 3, 10), point(2, 3, 0), point(6, 4, 12)]);
        assert_eq!(point_at(&points, 1), Some(point(0, 3, 10)));
        assert_eq!(point_at(&points, 5), Some(point(0, 3, 10)), "hidden ones are passed over");
        assert_eq!(point_at(&points, u32::MAX), Some(point(6, 4, 12)));
        assert_eq!(point_at(&[], 0), None);
        for length in 0..blob.len() {
            assert!(decode(&blob[..length], 0).len() <= 3);
        }
    }
}

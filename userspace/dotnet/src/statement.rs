//! Statements: which part of a method's IL its native code came from.

/// A statement of a method: where its instructions begin and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Statement {
    /// A MethodDef.
    pub method: u32,
    pub start: u32,
    pub end: u32,
}

/// A method's native and IL offsets at which its statements begin, sorted or not. Negative IL
/// offsets are the prologue (-2), the epilogue (-3) and code without a statement (-1)
/// (`ICorDebugInfo::MappingTypes`, src/coreclr/inc/cordebuginfo.h).
pub type IlMap = [(u32, i32)];

const PROLOGUE: i32 = -2;

/// Where the IL begins that the code at a native offset came from, and where the next begins that
/// has code of its own.
#[must_use]
pub fn statement_at(map: &IlMap, native: u32) -> Option<(u32, u32)> {
    let mut before: Vec<_> = map.iter().filter(|(start, _)| *start <= native).collect();
    before.sort_by_key(|(start, _)| *start);
    let begin = before.iter().rev().find_map(|(_, il)| match *il {
        PROLOGUE => Some(0),
        il => u32::try_from(il).ok(),
    })?;
    let all = map.iter().filter_map(|(_, il)| u32::try_from(*il).ok());
    Some((begin, all.filter(|il| *il > begin).min().unwrap_or(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_belongs_to_the_last_statement_before_it() {
        let map = [(20, 9), (0, PROLOGUE), (4, 0), (30, -1), (40, -3), (50, 30)];
        let at = |native| statement_at(&map, native).unwrap();
        assert_eq!([at(0), at(5), at(25)], [(0, 9), (0, 9), (9, 30)]);
        assert_eq!([at(35), at(45), at(99)], [(9, 30), (9, 30), (30, u32::MAX)]);
        assert_eq!(statement_at(&[], 3), None);
    }
}

//! The tables of ECMA-335 metadata and of portable PDBs, and how wide their rows are.
//!
//! References: ECMA-335 II.22 and II.24.2.6; `docs/design/specs/PortablePdb-Metadata.md` of the .NET
//! runtime.

/// How many tables there can be.
pub(crate) const TABLES: usize = 64;
/// Numbers of the tables; also the high byte of a token.
pub mod table {
    pub const MODULE: u8 = 0x00;
    pub const TYPE_REF: u8 = 0x01;
    pub const TYPE_DEF: u8 = 0x02;
    pub const FIELD: u8 = 0x04;
    pub const METHOD_PTR: u8 = 0x05;
    pub const METHOD_DEF: u8 = 0x06;
    pub const PARAM: u8 = 0x08;
    pub const INTERFACE_IMPL: u8 = 0x09;
    pub const MEMBER_REF: u8 = 0x0a;
    pub const DECL_SECURITY: u8 = 0x0e;
    pub const STAND_ALONE_SIG: u8 = 0x11;
    pub const EVENT: u8 = 0x14;
    pub const PROPERTY: u8 = 0x17;
    pub const MODULE_REF: u8 = 0x1a;
    pub const TYPE_SPEC: u8 = 0x1b;
    pub const IMPL_MAP: u8 = 0x1c;
    pub const ASSEMBLY: u8 = 0x20;
    pub const ASSEMBLY_REF: u8 = 0x23;
    pub const FILE: u8 = 0x26;
    pub const EXPORTED_TYPE: u8 = 0x27;
    pub const MANIFEST_RESOURCE: u8 = 0x28;
    pub const NESTED_CLASS: u8 = 0x29;
    pub const GENERIC_PARAM: u8 = 0x2a;
    pub const METHOD_SPEC: u8 = 0x2b;
    pub const GENERIC_PARAM_CONSTRAINT: u8 = 0x2c;
    pub const DOCUMENT: u8 = 0x30;
    pub const METHOD_DEBUG_INFORMATION: u8 = 0x31;
    pub const LOCAL_SCOPE: u8 = 0x32;
    pub const LOCAL_VARIABLE: u8 = 0x33;
    pub const LOCAL_CONSTANT: u8 = 0x34;
    pub const IMPORT_SCOPE: u8 = 0x35;
    pub const STATE_MACHINE_METHOD: u8 = 0x36;
}

use table::*;

/// A table that coded indexes skip.
const NONE: u8 = 0xff;

/// The type of a column.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Column {
    /// So many bytes.
    Plain(u8),
    String,
    Guid,
    Blob,
    /// A row of one table.
    Row(u8),
    /// A row of one of several tables; the lowest bits say which.
    Coded(&'static Coded),
}

/// A coded index (ECMA-335 II.24.2.6).
#[derive(Debug)]
pub struct Coded {
    pub(crate) bits: u32,
    pub(crate) tables: &'static [u8],
}

impl Coded {
    /// The token that a coded index stands for; `None` for a table that is none.
    #[must_use]
    pub fn token(&self, value: u32) -> Option<u32> {
        let tag = value & (1_u32 << self.bits).wrapping_sub(1);
        let table = *self.tables.get(usize::try_from(tag).ok()?)?;
        (table != NONE).then(|| u32::from(table) << 24 | (value >> self.bits) & 0x00ff_ffff)
    }

    /// The coded index of a token.
    #[must_use]
    pub fn encode(&self, token: u32) -> Option<u32> {
        let [table, ..] = token.to_be_bytes();
        let tag = self.tables.iter().position(|known| *known == table)?;
        Some((token & 0x00ff_ffff) << self.bits | u32::try_from(tag).ok()?)
    }
}

pub const TYPE_DEF_OR_REF: Coded = Coded { bits: 2, tables: &[TYPE_DEF, TYPE_REF, TYPE_SPEC] };
const HAS_CONSTANT: Coded = Coded { bits: 2, tables: &[FIELD, PARAM, PROPERTY] };
/// What has custom attributes; portable PDBs add tables that can have debug information.
const DESCRIBED: &[u8] = &[
    METHOD_DEF,
    FIELD,
    TYPE_REF,
    TYPE_DEF,
    PARAM,
    INTERFACE_IMPL,
    MEMBER_REF,
    MODULE,
    DECL_SECURITY,
    PROPERTY,
    EVENT,
    STAND_ALONE_SIG,
    MODULE_REF,
    TYPE_SPEC,
    ASSEMBLY,
    ASSEMBLY_REF,
    FILE,
    EXPORTED_TYPE,
    MANIFEST_RESOURCE,
    GENERIC_PARAM,
    GENERIC_PARAM_CONSTRAINT,
    METHOD_SPEC,
    DOCUMENT,
    LOCAL_SCOPE,
    LOCAL_VARIABLE,
    LOCAL_CONSTANT,
    IMPORT_SCOPE,
];
const HAS_CUSTOM_ATTRIBUTE: Coded = Coded { bits: 5, tables: DESCRIBED.split_at(22).0 };
const HAS_CUSTOM_DEBUG_INFORMATION: Coded = Coded { bits: 5, tables: DESCRIBED };
const HAS_FIELD_MARSHAL: Coded = Coded { bits: 1, tables: &[FIELD, PARAM] };
const HAS_DECL_SECURITY: Coded = Coded { bits: 2, tables: &[TYPE_DEF, METHOD_DEF, ASSEMBLY] };
pub const MEMBER_REF_PARENT: Coded =
    Coded { bits: 3, tables: &[TYPE_DEF, TYPE_REF, MODULE_REF, METHOD_DEF, TYPE_SPEC] };
const HAS_SEMANTICS: Coded = Coded { bits: 1, tables: &[EVENT, PROPERTY] };
pub const METHOD_DEF_OR_REF: Coded = Coded { bits: 1, tables: &[METHOD_DEF, MEMBER_REF] };
pub const MEMBER_FORWARDED: Coded = Coded { bits: 1, tables: &[FIELD, METHOD_DEF] };
const IMPLEMENTATION: Coded = Coded { bits: 2, tables: &[FILE, ASSEMBLY_REF, EXPORTED_TYPE] };
const CUSTOM_ATTRIBUTE_TYPE: Coded =
    Coded { bits: 3, tables: &[NONE, NONE, METHOD_DEF, MEMBER_REF, NONE] };
pub const RESOLUTION_SCOPE: Coded =
    Coded { bits: 2, tables: &[MODULE, MODULE_REF, ASSEMBLY_REF, TYPE_REF] };
pub const TYPE_OR_METHOD_DEF: Coded = Coded { bits: 1, tables: &[TYPE_DEF, METHOD_DEF] };

use Column::{Blob, Guid, Plain, Row, String};

/// The columns of every table, by its number. Those of uncompressed metadata (`FieldPtr`,
/// `MethodPtr`, `ParamPtr`, `EventPtr`, `PropertyPtr`) are there for their width only.
pub(crate) const SCHEMA: [&[Column]; TABLES] = {
    const fn coded(coded: &'static Coded) -> Column {
        Column::Coded(coded)
    }
    let mut schema: [&[Column]; TABLES] = [&[]; TABLES];
    schema[0x00] = &[Plain(2), String, Guid, Guid, Guid];
    schema[0x01] = &[coded(&RESOLUTION_SCOPE), String, String];
    schema[0x02] =
        &[Plain(4), String, String, coded(&TYPE_DEF_OR_REF), Row(FIELD), Row(METHOD_DEF)];
    schema[0x03] = &[Row(FIELD)];
    schema[0x04] = &[Plain(2), String, Blob];
    schema[0x05] = &[Row(METHOD_DEF)];
    schema[0x06] = &[Plain(4), Plain(2), Plain(2), String, Blob, Row(PARAM)];
    schema[0x07] = &[Row(PARAM)];
    schema[0x08] = &[Plain(2), Plain(2), String];
    schema[0x09] = &[Row(TYPE_DEF), coded(&TYPE_DEF_OR_REF)];
    schema[0x0a] = &[coded(&MEMBER_REF_PARENT), String, Blob];
    schema[0x0b] = &[Plain(2), coded(&HAS_CONSTANT), Blob];
    schema[0x0c] = &[coded(&HAS_CUSTOM_ATTRIBUTE), coded(&CUSTOM_ATTRIBUTE_TYPE), Blob];
    schema[0x0d] = &[coded(&HAS_FIELD_MARSHAL), Blob];
    schema[0x0e] = &[Plain(2), coded(&HAS_DECL_SECURITY), Blob];
    schema[0x0f] = &[Plain(2), Plain(4), Row(TYPE_DEF)];
    schema[0x10] = &[Plain(4), Row(FIELD)];
    schema[0x11] = &[Blob];
    schema[0x12] = &[Row(TYPE_DEF), Row(EVENT)];
    schema[0x13] = &[Row(EVENT)];
    schema[0x14] = &[Plain(2), String, coded(&TYPE_DEF_OR_REF)];
    schema[0x15] = &[Row(TYPE_DEF), Row(PROPERTY)];
    schema[0x16] = &[Row(PROPERTY)];
    schema[0x17] = &[Plain(2), String, Blob];
    schema[0x18] = &[Plain(2), Row(METHOD_DEF), coded(&HAS_SEMANTICS)];
    schema[0x19] = &[Row(TYPE_DEF), coded(&METHOD_DEF_OR_REF), coded(&METHOD_DEF_OR_REF)];
    schema[0x1a] = &[String];
    schema[0x1b] = &[Blob];
    schema[0x1c] = &[Plain(2), coded(&MEMBER_FORWARDED), String, Row(MODULE_REF)];
    schema[0x1d] = &[Plain(4), Row(FIELD)];
    schema[0x1e] = &[Plain(4), Plain(4)];
    schema[0x1f] = &[Plain(4)];
    schema[0x20] =
        &[Plain(4), Plain(2), Plain(2), Plain(2), Plain(2), Plain(4), Blob, String, String];
    schema[0x21] = &[Plain(4)];
    schema[0x22] = &[Plain(4), Plain(4), Plain(4)];
    schema[0x23] = &[Plain(2), Plain(2), Plain(2), Plain(2), Plain(4), Blob, String, String, Blob];
    schema[0x24] = &[Plain(4), Row(ASSEMBLY_REF)];
    schema[0x25] = &[Plain(4), Plain(4), Plain(4), Row(ASSEMBLY_REF)];
    schema[0x26] = &[Plain(4), String, Blob];
    schema[0x27] = &[Plain(4), Plain(4), String, String, coded(&IMPLEMENTATION)];
    schema[0x28] = &[Plain(4), Plain(4), String, coded(&IMPLEMENTATION)];
    schema[0x29] = &[Row(TYPE_DEF), Row(TYPE_DEF)];
    schema[0x2a] = &[Plain(2), Plain(2), coded(&TYPE_OR_METHOD_DEF), String];
    schema[0x2b] = &[coded(&METHOD_DEF_OR_REF), Blob];
    schema[0x2c] = &[Row(GENERIC_PARAM), coded(&TYPE_DEF_OR_REF)];
    schema[0x30] = &[Blob, Guid, Blob, Guid];
    schema[0x31] = &[Row(DOCUMENT), Blob];
    schema[0x32] = &[
        Row(METHOD_DEF),
        Row(IMPORT_SCOPE),
        Row(LOCAL_VARIABLE),
        Row(LOCAL_CONSTANT),
        Plain(4),
        Plain(4),
    ];
    schema[0x33] = &[Plain(2), Plain(2), String];
    schema[0x34] = &[String, Blob];
    schema[0x35] = &[Row(IMPORT_SCOPE), Blob];
    schema[0x36] = &[Row(METHOD_DEF), Row(METHOD_DEF)];
    schema[0x37] = &[coded(&HAS_CUSTOM_DEBUG_INFORMATION), Guid, Blob];
    schema
};

//! How the rows of the metadata tables are laid out (ECMA-335 II.22 and II.24.2.6).

/// One column of a table.
#[derive(Clone, Copy)]
pub enum Column {
    /// A number of so many bytes.
    Fixed(usize),
    String,
    Guid,
    Blob,
    /// The row of a table.
    Row(usize),
    /// The row of one of several tables, and which, in the lowest bits.
    Coded(&'static Coded),
}

/// The tables that a coded index can mean, by tag.
pub struct Coded {
    pub bits: u32,
    pub tables: &'static [usize],
}

use Column::{Blob, Coded as Of, Fixed, Guid, Row, String as Text};

pub const TABLES: usize = 0x2d;

pub const MODULE: usize = 0x00;
pub const TYPE_REF: usize = 0x01;
pub const TYPE_DEF: usize = 0x02;
pub const METHOD_PTR: usize = 0x05;
pub const METHOD_DEF: usize = 0x06;
pub const TYPE_SPEC: usize = 0x1b;
pub const NESTED_CLASS: usize = 0x29;
pub const GENERIC_PARAM: usize = 0x2a;

pub static TYPE_DEF_OR_REF: Coded = Coded { bits: 2, tables: &[TYPE_DEF, TYPE_REF, TYPE_SPEC] };
pub static RESOLUTION_SCOPE: Coded = Coded { bits: 2, tables: &[MODULE, 0x1a, 0x23, TYPE_REF] };
pub static TYPE_OR_METHOD_DEF: Coded = Coded { bits: 1, tables: &[TYPE_DEF, METHOD_DEF] };
static HAS_CONSTANT: Coded = Coded { bits: 2, tables: &[0x04, 0x08, 0x17] };
static HAS_CUSTOM_ATTRIBUTE: Coded = Coded {
    bits: 5,
    tables: &[
        0x06, 0x04, 0x01, 0x02, 0x08, 0x09, 0x0a, 0x00, 0x0e, 0x17, 0x14, 0x11, 0x1a, 0x1b, 0x20,
        0x23, 0x26, 0x27, 0x28, 0x2a, 0x2c, 0x2b,
    ],
};
static HAS_FIELD_MARSHAL: Coded = Coded { bits: 1, tables: &[0x04, 0x08] };
static HAS_DECL_SECURITY: Coded = Coded { bits: 2, tables: &[0x02, 0x06, 0x20] };
static MEMBER_REF_PARENT: Coded = Coded { bits: 3, tables: &[0x02, 0x01, 0x1a, 0x06, 0x1b] };
static HAS_SEMANTICS: Coded = Coded { bits: 1, tables: &[0x14, 0x17] };
static METHOD_DEF_OR_REF: Coded = Coded { bits: 1, tables: &[0x06, 0x0a] };
static MEMBER_FORWARDED: Coded = Coded { bits: 1, tables: &[0x04, 0x06] };
static IMPLEMENTATION: Coded = Coded { bits: 2, tables: &[0x26, 0x23, 0x27] };
static CUSTOM_ATTRIBUTE_TYPE: Coded = Coded { bits: 3, tables: &[0x06, 0x0a] };

/// The columns of every table, by its number.
pub static SCHEMA: [&[Column]; TABLES] = [
    /* 00 Module */ &[Fixed(2), Text, Guid, Guid, Guid],
    /* 01 TypeRef */ &[Of(&RESOLUTION_SCOPE), Text, Text],
    /* 02 TypeDef */ &[Fixed(4), Text, Text, Of(&TYPE_DEF_OR_REF), Row(0x04), Row(0x06)],
    /* 03 FieldPtr */ &[Row(0x04)],
    /* 04 Field */ &[Fixed(2), Text, Blob],
    /* 05 MethodPtr */ &[Row(0x06)],
    /* 06 MethodDef */ &[Fixed(4), Fixed(2), Fixed(2), Text, Blob, Row(0x08)],
    /* 07 ParamPtr */ &[Row(0x08)],
    /* 08 Param */ &[Fixed(2), Fixed(2), Text],
    /* 09 InterfaceImpl */ &[Row(0x02), Of(&TYPE_DEF_OR_REF)],
    /* 0a MemberRef */ &[Of(&MEMBER_REF_PARENT), Text, Blob],
    /* 0b Constant */ &[Fixed(2), Of(&HAS_CONSTANT), Blob],
    /* 0c CustomAttribute */ &[Of(&HAS_CUSTOM_ATTRIBUTE), Of(&CUSTOM_ATTRIBUTE_TYPE), Blob],
    /* 0d FieldMarshal */ &[Of(&HAS_FIELD_MARSHAL), Blob],
    /* 0e DeclSecurity */ &[Fixed(2), Of(&HAS_DECL_SECURITY), Blob],
    /* 0f ClassLayout */ &[Fixed(2), Fixed(4), Row(0x02)],
    /* 10 FieldLayout */ &[Fixed(4), Row(0x04)],
    /* 11 StandAloneSig */ &[Blob],
    /* 12 EventMap */ &[Row(0x02), Row(0x14)],
    /* 13 EventPtr */ &[Row(0x14)],
    /* 14 Event */ &[Fixed(2), Text, Of(&TYPE_DEF_OR_REF)],
    /* 15 PropertyMap */ &[Row(0x02), Row(0x17)],
    /* 16 PropertyPtr */ &[Row(0x17)],
    /* 17 Property */ &[Fixed(2), Text, Blob],
    /* 18 MethodSemantics */ &[Fixed(2), Row(0x06), Of(&HAS_SEMANTICS)],
    /* 19 MethodImpl */ &[Row(0x02), Of(&METHOD_DEF_OR_REF), Of(&METHOD_DEF_OR_REF)],
    /* 1a ModuleRef */ &[Text],
    /* 1b TypeSpec */ &[Blob],
    /* 1c ImplMap */ &[Fixed(2), Of(&MEMBER_FORWARDED), Text, Row(0x1a)],
    /* 1d FieldRVA */ &[Fixed(4), Row(0x04)],
    /* 1e EncLog */ &[Fixed(4), Fixed(4)],
    /* 1f EncMap */ &[Fixed(4)],
    /* 20 Assembly */
    &[Fixed(4), Fixed(2), Fixed(2), Fixed(2), Fixed(2), Fixed(4), Blob, Text, Text],
    /* 21 AssemblyProcessor */ &[Fixed(4)],
    /* 22 AssemblyOS */ &[Fixed(4), Fixed(4), Fixed(4)],
    /* 23 AssemblyRef */
    &[Fixed(2), Fixed(2), Fixed(2), Fixed(2), Fixed(4), Blob, Text, Text, Blob],
    /* 24 AssemblyRefProcessor */ &[Fixed(4), Row(0x23)],
    /* 25 AssemblyRefOS */ &[Fixed(4), Fixed(4), Fixed(4), Row(0x23)],
    /* 26 File */ &[Fixed(4), Text, Blob],
    /* 27 ExportedType */ &[Fixed(4), Fixed(4), Text, Text, Of(&IMPLEMENTATION)],
    /* 28 ManifestResource */ &[Fixed(4), Fixed(4), Text, Of(&IMPLEMENTATION)],
    /* 29 NestedClass */ &[Row(0x02), Row(0x02)],
    /* 2a GenericParam */ &[Fixed(2), Fixed(2), Of(&TYPE_OR_METHOD_DEF), Text],
    /* 2b MethodSpec */ &[Of(&METHOD_DEF_OR_REF), Blob],
    /* 2c GenericParamConstraint */ &[Row(0x2a), Of(&TYPE_DEF_OR_REF)],
];

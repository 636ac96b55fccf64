//! The records of the log: what the bridge reports about the runtime.
//!
//! Every kind exists twice, from one list of fields: `Method<'a>` borrows what the bridge has at
//! hand and is written without allocating; `MethodRecord` owns what was read. A record's bytes are
//! its 16-byte header ([`crate::log`]) and its fields in the order of the list, encoded as in
//! [`crate::field`]. Bytes after the last field are ignored: padding today, room for later fields.
//!
//! Nearly all records are of methods, and few of these are looked at: [`MethodView`] reads one where it
//! lies.
//!
//! Invariant: `decode` of any bytes is a value or an error; its memory is bounded by its input.

use crate::decode_error::DecodeError;
use crate::field::{CodeRangeRecord, Field, IlMapEntry, Measure, RangesView, Sink, Source};

/// Set in a record's flags when a text or list was longer than its bound.
pub const FLAG_CUT: u8 = 1;

/// Something that can be appended to the log.
pub trait Encode {
    /// One of [`kind`].
    const KIND: u16;

    /// Writes the fields, always the same bytes for the same value.
    fn encode(&self, sink: &mut impl Sink);

    /// How many bytes `encode` writes, and whether it truncates.
    fn measure(&self) -> Measure {
        let mut measure = Measure::default();
        self.encode(&mut measure);
        measure
    }
}

/// Kinds that own nothing: one type is both written and read.
macro_rules! plain_records {
    ($($(#[$about:meta])* $name:ident = $kind:ident {
        $($(#[$field_about:meta])* $field:ident: $type:ty,)*
    })*) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name {
            $($(#[$field_about])* pub $field: $type,)*
        }

        impl Encode for $name {
            const KIND: u16 = kind::$kind;

            fn encode(&self, sink: &mut impl Sink) {
                $(<$type as Field>::put(self.$field, sink);)*
            }
        }

        impl $name {
            /// Reads the fields of a record of this kind.
            pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
                let mut source = Source::new(bytes);
                Ok(Self { $($field: Field::take(&mut source)?,)* })
            }
        }
    )*};
}

/// Kinds with texts and lists: one type borrows them, one owns them.
macro_rules! records {
    ($($(#[$about:meta])* $borrowed:ident, $owned:ident = $kind:ident {
        $($(#[$field_about:meta])* $field:ident: $type:ty,)*
    })*) => {$(
        $(#[$about])*
        ///
        /// Borrows its fields, to be written.
        #[derive(Debug, Clone, Copy)]
        pub struct $borrowed<'a> {
            $($(#[$field_about])* pub $field: <$type as Field>::Borrowed<'a>,)*
        }

        impl Encode for $borrowed<'_> {
            const KIND: u16 = kind::$kind;

            fn encode(&self, sink: &mut impl Sink) {
                $(<$type as Field>::put(self.$field, sink);)*
            }
        }

        $(#[$about])*
        ///
        /// Owns its fields, as read.
        #[derive(Debug, Clone, PartialEq, Eq, Default)]
        pub struct $owned {
            $($(#[$field_about])* pub $field: $type,)*
        }

        impl $owned {
            /// The same, to be written.
            #[must_use]
            pub fn borrow(&self) -> $borrowed<'_> {
                $borrowed { $($field: Field::borrow(&self.$field),)* }
            }

            /// Reads the fields of a record of this kind.
            pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
                let mut source = Source::new(bytes);
                Ok(Self { $($field: Field::take(&mut source)?,)* })
            }
        }

        impl Encode for $owned {
            const KIND: u16 = kind::$kind;

            fn encode(&self, sink: &mut impl Sink) {
                self.borrow().encode(sink);
            }
        }
    )*};
}

/// All kinds, by the number in a record's header. 0 is never a record.
macro_rules! kinds {
    ($($number:literal $constant:ident $variant:ident $owned:ty,)*) => {
        /// The numbers of the kinds, as they stand in a record's header. 0 is never a record.
        pub mod kind {
            $(pub const $constant: u16 = $number;)*
        }

        /// A record of any kind, as read.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Record {
            $($variant($owned),)*
        }

        impl Record {
            /// Reads the fields of a record of the kind that its header names.
            pub fn decode(kind: u16, bytes: &[u8]) -> Result<Self, DecodeError> {
                match kind {
                    $($number => Ok(Self::$variant(<$owned>::decode(bytes)?)),)*
                    unknown => Err(DecodeError::UnknownKind(unknown)),
                }
            }

            #[must_use]
            pub fn kind(&self) -> u16 {
                match self {
                    $(Self::$variant(_) => $number,)*
                }
            }

            /// Writes the fields.
            pub fn encode(&self, sink: &mut impl Sink) {
                match self {
                    $(Self::$variant(record) => record.encode(sink),)*
                }
            }
        }

        $(impl From<$owned> for Record {
            fn from(record: $owned) -> Self {
                Self::$variant(record)
            }
        })*
    };
}

kinds! {
    1 APP_DOMAIN AppDomain AppDomainRecord,
    2 APP_DOMAIN_END AppDomainEnd AppDomainEnd,
    3 MODULE Module ModuleRecord,
    4 MODULE_UNLOAD ModuleUnload ModuleUnload,
    5 TYPE Type TypeRecord,
    6 METHOD Method MethodRecord,
    7 METHOD_UNLOAD MethodUnload MethodUnload,
    8 NOT_FOUND NotFound NotFound,
    9 IL_MAP IlMap IlMapRecord,
    10 THREAD Thread ThreadRecord,
    11 THREAD_END ThreadEnd ThreadEnd,
    12 DIAGNOSTIC Diagnostic DiagnosticRecord,
    13 ENUMERATED Enumerated Enumerated,
}

plain_records! {
    /// An AppDomain is gone.
    AppDomainEnd = APP_DOMAIN_END {
        id: u64,
    }

    /// A module is gone, and with it its types and methods.
    ModuleUnload = MODULE_UNLOAD {
        module: u64,
    }

    /// A method's code is gone (dynamic methods, unloaded modules).
    MethodUnload = METHOD_UNLOAD {
        function: u64,
        /// Start of the first range.
        start: u64,
    }

    /// Answer to a request: the runtime knows no method at this address.
    NotFound = NOT_FOUND {
        ip: u64,
    }

    /// A managed thread is gone.
    ThreadEnd = THREAD_END {
        managed_id: u64,
    }

    /// Everything that existed when the owner came has been written.
    Enumerated = ENUMERATED {
        /// The owner's epoch ([`crate::control::Wishes::epoch`]).
        epoch: u32,
    }
}

records! {
    /// An AppDomain; written again when something changes, and then the last one counts.
    AppDomain, AppDomainRecord = APP_DOMAIN {
        id: u64,
        /// A UUID that the bridge made up for this AppDomain.
        runtime_id: [u8; 16],
        name: String,
        /// From `SetApplicationInfoForAppDomain`, else empty; also the next two.
        service: String,
        environment: String,
        version: String,
    }

    /// A loaded module.
    Module, ModuleRecord = MODULE {
        module: u64,
        app_domain: u64,
        /// Where its image is loaded, 0 if nowhere.
        base: u64,
        size: u32,
        /// Module version id: the GUID of the compilation, in the byte order of the metadata.
        mvid: [u8; 16],
        /// Bits of [`module_flag`].
        flags: u32,
        assembly: String,
        path: String,
    }

    /// A type, written once per token before the first record that refers to it.
    Type, TypeRecord = TYPE {
        module: u64,
        /// A TypeDef, TypeRef or TypeSpec.
        token: u32,
        /// As in the metadata, nested types joined by `+`, with arity marks. Empty for a TypeSpec.
        name: String,
        /// The signature of a TypeSpec, else empty.
        signature: Vec<u8>,
        generic_parameters: Vec<String>,
    }

    /// A method's native code: written for every compilation, and for every address asked.
    Method, MethodRecord = METHOD {
        function: u64,
        rejit: u64,
        module: u64,
        type_token: u32,
        token: u32,
        /// A [`MethodKind`].
        kind: u8,
        /// A [`Tier`].
        tier: u8,
        app_domain: u64,
        name: String,
        generic_parameters: Vec<String>,
        /// The method's signature as in the metadata.
        signature: Vec<u8>,
        /// Exact value types; empty for a shared (reference type) argument. So for the next.
        class_arguments: Vec<String>,
        method_arguments: Vec<String>,
        /// The address of the request, 0 if there was none.
        asked_ip: u64,
        ranges: Vec<CodeRangeRecord>,
    }

    /// Answer to a request: which IL a method's code came from.
    IlMap, IlMapRecord = IL_MAP {
        function: u64,
        rejit: u64,
        /// Start of the code that this map is of.
        start: u64,
        entries: Vec<IlMapEntry>,
    }

    /// A managed thread; written again when its name changes.
    Thread, ThreadRecord = THREAD {
        managed_id: u64,
        /// In the thread's innermost PID namespace.
        os_tid: u32,
        name: String,
    }

    /// What the bridge has to say about itself. It writes nowhere else.
    Diagnostic, DiagnosticRecord = DIAGNOSTIC {
        /// A [`Level`].
        level: u8,
        text: String,
    }
}

/// Bits of [`ModuleRecord::flags`].
pub mod module_flag {
    /// Made at run time (`Reflection.Emit`).
    pub const DYNAMIC: u32 = 1;
    /// Loaded from memory, not from a file.
    pub const IN_MEMORY: u32 = 2;
    /// Has ReadyToRun code.
    pub const READY_TO_RUN: u32 = 4;
    /// Mapped as in the file, not as sections.
    pub const FLAT: u32 = 8;
}

macro_rules! byte_enum {
    ($(#[$about:meta])* $name:ident {
        $($(#[$variant_about:meta])* $variant:ident = $value:literal,)*
    }) => {
        $(#[$about])*
        #[repr(u8)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$variant_about])* $variant = $value,)*
        }

        impl $name {
            /// What a byte of a record means, if anything.
            #[must_use]
            pub fn from_byte(byte: u8) -> Option<Self> {
                match byte {
                    $($value => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

byte_enum! {
    /// Where a method's code came from.
    MethodKind {
        Jitted = 1,
        /// Without metadata (`DynamicMethod`).
        Dynamic = 2,
        /// Glue made by the runtime (IL stubs).
        Stub = 3,
        /// Found by a request for an address.
        Resolved = 4,
    }
}

byte_enum! {
    /// How well a method's code is optimised.
    Tier {
        Unknown = 0,
        /// Tier 0, or compiled without optimisation.
        Minimal = 1,
        Tier1 = 2,
        /// Entered in the middle of a running loop (on-stack replacement).
        Osr = 3,
        ReadyToRun = 4,
        /// Optimised at once, outside the tiers.
        Optimised = 5,
    }
}

byte_enum! {
    /// How grave a [`DiagnosticRecord`] is.
    Level {
        Debug = 1,
        Information = 2,
        Warning = 3,
        Error = 4,
    }
}

/// A record as it lies in the log.
#[derive(Debug, Clone, Copy)]
pub struct RawRecord<'a> {
    /// Nanoseconds of the monotonic clock.
    pub time: u64,
    /// A text or list of it was truncated.
    pub cut: bool,
    /// One of [`kind`], or a later version's.
    pub kind: u16,
    pub fields: &'a [u8],
}

impl RawRecord<'_> {
    pub fn decode(&self) -> Result<Record, DecodeError> {
        Record::decode(self.kind, self.fields)
    }
}

/// The fields of a [`MethodRecord`] where they lie, checked as [`MethodRecord::decode`] does.
#[derive(Debug, Clone, Copy)]
pub struct MethodView<'a> {
    pub function: u64,
    pub rejit: u64,
    pub module: u64,
    pub type_token: u32,
    pub token: u32,
    pub kind: u8,
    pub tier: u8,
    pub app_domain: u64,
    /// Name, generic parameters and signature, encoded.
    pub texts: &'a [u8],
    /// Class and method arguments, encoded.
    pub arguments: &'a [u8],
    pub asked_ip: u64,
    pub ranges: RangesView<'a>,
}

impl<'a> MethodView<'a> {
    /// [`MethodView::arguments`] of a method without any.
    pub const NO_ARGUMENTS: [u8; 4] = [0; 4];

    /// Reads the fields of a method's record.
    pub fn of(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut source = Source::new(bytes);
        Ok(Self {
            function: Field::take(&mut source)?,
            rejit: Field::take(&mut source)?,
            module: Field::take(&mut source)?,
            type_token: Field::take(&mut source)?,
            token: Field::take(&mut source)?,
            kind: Field::take(&mut source)?,
            tier: Field::take(&mut source)?,
            app_domain: Field::take(&mut source)?,
            texts: source.passed(|source| {
                String::skip(source)?;
                Vec::<String>::skip(source)?;
                Vec::<u8>::skip(source)
            })?,
            arguments: source.passed(|source| {
                Vec::<String>::skip(source)?;
                Vec::<String>::skip(source)
            })?,
            asked_ip: Field::take(&mut source)?,
            ranges: RangesView::take(&mut source)?,
        })
    }

    #[must_use]
    pub fn kind(&self) -> Option<MethodKind> {
        MethodKind::from_byte(self.kind)
    }

    /// The tier; what this version does not know is unknown.
    #[must_use]
    pub fn tier(&self) -> Tier {
        Tier::from_byte(self.tier).unwrap_or(Tier::Unknown)
    }
}

impl MethodRecord {
    #[must_use]
    pub fn kind(&self) -> Option<MethodKind> {
        MethodKind::from_byte(self.kind)
    }

    /// The tier; what this version does not know is unknown.
    #[must_use]
    pub fn tier(&self) -> Tier {
        Tier::from_byte(self.tier).unwrap_or(Tier::Unknown)
    }
}

//! The messages of `profile.proto` (github.com/google/pprof/blob/main/proto/profile.proto) below
//! its top level, which `wire` walks by hand so that no profile is ever held twice.

/// Field numbers: those of the top-level message `Profile`, and, for the writer, those of each
/// message in it.
pub(super) mod field {
    pub(crate) const SAMPLE_TYPE: u32 = 1;
    pub(crate) const SAMPLE: u32 = 2;
    pub(crate) const MAPPING: u32 = 3;
    pub(crate) const LOCATION: u32 = 4;
    pub(crate) const FUNCTION: u32 = 5;
    pub(crate) const STRING_TABLE: u32 = 6;
    pub(crate) const TIME_NANOS: u32 = 9;
    pub(crate) const DURATION_NANOS: u32 = 10;
    pub(crate) const PERIOD_TYPE: u32 = 11;
    pub(crate) const PERIOD: u32 = 12;
    pub(crate) const COMMENT: u32 = 13;
    pub(crate) const DEFAULT_SAMPLE_TYPE: u32 = 14;

    pub(crate) mod value_type {
        pub(crate) const NAME: u32 = 1;
        pub(crate) const UNIT: u32 = 2;
    }

    pub(crate) mod sample {
        pub(crate) const LOCATION_ID: u32 = 1;
        pub(crate) const VALUE: u32 = 2;
        pub(crate) const LABEL: u32 = 3;
    }

    pub(crate) mod label {
        pub(crate) const KEY: u32 = 1;
        pub(crate) const STR: u32 = 2;
        pub(crate) const NUM: u32 = 3;
        pub(crate) const NUM_UNIT: u32 = 4;
    }

    pub(crate) mod mapping {
        pub(crate) const ID: u32 = 1;
        pub(crate) const MEMORY_START: u32 = 2;
        pub(crate) const MEMORY_LIMIT: u32 = 3;
        pub(crate) const FILE_OFFSET: u32 = 4;
        pub(crate) const FILENAME: u32 = 5;
        pub(crate) const BUILD_ID: u32 = 6;
        pub(crate) const HAS_FUNCTIONS: u32 = 7;
        pub(crate) const HAS_FILENAMES: u32 = 8;
        pub(crate) const HAS_LINE_NUMBERS: u32 = 9;
        pub(crate) const HAS_INLINE_FRAMES: u32 = 10;
    }

    pub(crate) mod location {
        pub(crate) const ID: u32 = 1;
        pub(crate) const MAPPING_ID: u32 = 2;
        pub(crate) const ADDRESS: u32 = 3;
        pub(crate) const LINE: u32 = 4;
    }

    pub(crate) mod line {
        pub(crate) const FUNCTION_ID: u32 = 1;
        pub(crate) const LINE: u32 = 2;
    }

    pub(crate) mod function {
        pub(crate) const ID: u32 = 1;
        pub(crate) const NAME: u32 = 2;
        pub(crate) const SYSTEM_NAME: u32 = 3;
        pub(crate) const FILENAME: u32 = 4;
    }
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct ValueType {
    /// Position in the string table, as every `name`, `key`, `str` and the like below.
    #[prost(int64, tag = "1")]
    pub(super) name: i64,
    #[prost(int64, tag = "2")]
    pub(super) unit: i64,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Sample {
    /// Leaf first.
    #[prost(uint64, repeated, tag = "1")]
    pub(super) location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    pub(super) value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub(super) label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct Label {
    #[prost(int64, tag = "1")]
    pub(super) key: i64,
    #[prost(int64, tag = "2")]
    pub(super) str: i64,
    #[prost(int64, tag = "3")]
    pub(super) num: i64,
    #[prost(int64, tag = "4")]
    pub(super) num_unit: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct Mapping {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(uint64, tag = "2")]
    pub(super) memory_start: u64,
    #[prost(uint64, tag = "3")]
    pub(super) memory_limit: u64,
    #[prost(uint64, tag = "4")]
    pub(super) file_offset: u64,
    #[prost(int64, tag = "5")]
    pub(super) filename: i64,
    #[prost(int64, tag = "6")]
    pub(super) build_id: i64,
    #[prost(bool, tag = "7")]
    pub(super) has_functions: bool,
    #[prost(bool, tag = "8")]
    pub(super) has_filenames: bool,
    #[prost(bool, tag = "9")]
    pub(super) has_line_numbers: bool,
    #[prost(bool, tag = "10")]
    pub(super) has_inline_frames: bool,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Location {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(uint64, tag = "2")]
    pub(super) mapping_id: u64,
    #[prost(uint64, tag = "3")]
    pub(super) address: u64,
    /// Innermost inlined function first.
    #[prost(message, repeated, tag = "4")]
    pub(super) line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct Line {
    #[prost(uint64, tag = "1")]
    pub(super) function_id: u64,
    #[prost(int64, tag = "2")]
    pub(super) line: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct Function {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(int64, tag = "2")]
    pub(super) name: i64,
    #[prost(int64, tag = "3")]
    pub(super) system_name: i64,
    #[prost(int64, tag = "4")]
    pub(super) filename: i64,
}

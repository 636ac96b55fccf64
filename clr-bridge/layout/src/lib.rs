//! The memory that the CLR bridge shares with strata: its bytes, its writer, its reader.

pub mod field;
pub mod record;

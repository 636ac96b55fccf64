//! The memory that the CLR bridge shares with strata: its bytes, its writer, its reader.
//!
//! | who | starts at |
//! |---|---|
//! | the bridge | [`writer::Writer`]: log, ring, contexts, status, control |
//! | strata, any number of readers | [`reader::file`] and [`reader::Reader`]: log, status, contexts |
//! | strata, the owner | [`owning::Owner`]: wishes, requests; [`reader::ring::RingReader`]: events |
//! | both | [`record`] and [`event`]: what is told; [`status`], [`control`]: what is said and wanted |

pub mod contexts;
pub mod control;
pub mod event;
pub mod field;
pub mod layout;
pub mod log;
pub mod memory;
pub mod owner;
pub mod owning;
pub mod reader;
pub mod record;
pub mod ring;
pub mod shared_file;
pub mod status;
pub mod writer;

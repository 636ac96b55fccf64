//! .NET processes: the bridge in each, the code it announces, and the names of it.
//!
//! - [`code`]: the code a runtime has generated: who is where, and how it is unwound.

pub mod code;

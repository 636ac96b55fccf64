//! Display names of .NET methods.

mod any_input;
mod generics;
mod signatures;
mod table;

//! Turns the names that the CLR's metadata holds into the names that people wrote.
#![forbid(unsafe_code)]

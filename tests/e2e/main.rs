//! End-to-end tests of `strata`: real processes, the real binary, results read back by readers of
//! our own. One module per theme of what the product promises.
//!
//! They need root and what `cargo xtask setup test` installs, and are run by `cargo xtask test`.
//! By default each records for seconds; `STRATA_TEST_LONG=1` gives every figure at least 10,000
//! samples and the full durations. Every test prints the figures it saw (`--nocapture`).

mod harness;

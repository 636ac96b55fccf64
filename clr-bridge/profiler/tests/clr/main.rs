//! The library in real runtimes: loaded by environment, attached, detached, and in trouble.

mod support;

mod answers;
mod changes;
mod lifecycle;
mod linking;
mod names;
mod newest;
mod trouble;

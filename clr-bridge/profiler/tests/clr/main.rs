//! The library in real runtimes: loaded by environment, attached, detached, and in trouble.

mod stacks;
mod support;

mod answers;
mod changes;
mod events;
mod faults;
mod idle;
mod lifecycle;
mod linking;
mod long_lives;
mod names;
mod newest;
mod trouble;

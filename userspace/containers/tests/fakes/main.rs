//! The sources, against fake servers.

mod hostile;
mod protocols;
mod support;

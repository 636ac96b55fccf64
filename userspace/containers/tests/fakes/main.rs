//! The sources, against fakes of what they talk to.

mod hostile;
mod protocols;
mod support;

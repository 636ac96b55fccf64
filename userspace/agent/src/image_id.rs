//! The number of a process image: a process from one exec to the next.

/// An image of [`ProcessTable`](crate::processes::table::ProcessTable). Numbers of dropped images may be
/// reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageId(pub u32);

//! What the target `fake_clr` can pretend: how it lies about its memory, and at its socket.

pub const MODES: [&str; 15] = [
    "honest",
    "random",
    "all-random",
    "changing",
    "counts",
    "cycles",
    "millions",
    "stuck",
    "overlaps",
    "holes",
    "shrinking",
    "hugetlb",
    "file",
    "mains",
    "locked",
];
pub const SOCKETS: [&str; 5] = ["none", "silent", "mute", "flood", "huge"];

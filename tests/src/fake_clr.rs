//! The modes of the target `fake_clr`: false contents of its memory, and false answers on its
//! socket.

pub const MODES: [&str; 20] = [
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
    "units",
    "rows",
    "churn",
    "names",
    "many-names",
];
pub const SOCKETS: [&str; 5] = ["none", "silent", "mute", "flood", "huge"];

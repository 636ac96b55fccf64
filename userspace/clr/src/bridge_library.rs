//! The bridge libraries embedded in strata: one for each C library.

use crate::loading::Library;
use crate::mappings::CLibrary;
use crate::profilers::{STRATA_CLASS, STRATA_LIBRARY};

include!(concat!(env!("OUT_DIR"), "/libraries.rs"));

/// The bytes of the library for processes on this C library; nothing when this build of strata
/// has none.
pub fn content(c_library: CLibrary) -> Option<&'static [u8]> {
    match c_library {
        CLibrary::Glibc => GLIBC,
        CLibrary::Musl => MUSL,
    }
}

/// The same as a [`Library`].
pub fn library(c_library: CLibrary) -> Option<Library<'static>> {
    let content = content(c_library)?;
    Some(Library { name: STRATA_LIBRARY, class: STRATA_CLASS, content })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_carried_is_a_library_of_its_name() {
        let glibc = content(CLibrary::Glibc).expect("every build has this one");
        for library in [Some(glibc), content(CLibrary::Musl)].into_iter().flatten() {
            assert!(library.starts_with(b"\x7fELF"));
            let name = format!("{STRATA_LIBRARY}\0");
            assert!(library.windows(name.len()).any(|window| window == name.as_bytes()));
        }
    }
}

//! The vDSO: an ELF image that the kernel maps into every process, the same everywhere.

/// A copy of this process's own vDSO.
pub fn image() -> Option<Vec<u8>> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]"))?;
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    let length = end.checked_sub(start)?;
    // SAFETY: the kernel has mapped these pages readable for the life of the process.
    let bytes = unsafe { std::slice::from_raw_parts(start as *const u8, length) };
    Some(bytes.to_vec())
}

//! What one file may cost, so that a crafted one cannot use up memory, time or rule numbers.

/// Quotas of one [`crate::build`]. What exceeds a quota is counted in [`crate::Statistics`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Rows of the table; a file that needs more keeps those of its lower addresses.
    pub max_rows: u32,
    /// Distinct rules; further ones become `Unsupported`.
    pub max_rules: u32,
    /// Bytes of one section that is read whole.
    pub max_section: u64,
    /// Frame description entries.
    pub max_entries: u32,
    /// Steps of work: instructions of call frame information, table entries, decoded code.
    pub max_work: u64,
    /// Bytes of code read and decoded because no table covers them.
    pub max_decoded: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_rows: 4 << 20,
            max_rules: 2048,
            max_section: 256 << 20,
            max_entries: 2 << 20,
            max_work: 128 << 20,
            max_decoded: 16 << 20,
        }
    }
}

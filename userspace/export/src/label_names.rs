//! Names of labels as a backend takes them.

/// A valid name of a label: letters, digits and underscores, no digit first.
pub(crate) fn pyroscope_name(name: &str) -> String {
    let valid = |byte: char| if byte.is_ascii_alphanumeric() { byte } else { '_' };
    let mut made: String = name.chars().map(valid).collect();
    if made.is_empty() || made.starts_with(|first: char| first.is_ascii_digit()) {
        made.insert(0, '_');
    }
    made
}

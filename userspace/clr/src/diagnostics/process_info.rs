//! The answer to `ProcessInfo` and `ProcessInfo2` (src/native/eventpipe/ds-process-protocol.c).

use super::DiagnosticsError;

/// A runtime's description of its process. All of it is untrusted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessInfo {
    /// In the target's own PID namespace.
    pub pid: u64,
    /// A GUID that is new for every runtime.
    pub cookie: [u8; 16],
    pub command_line: String,
    pub operating_system: String,
    /// `x64`, `arm64`, ….
    pub architecture: String,
    /// The assembly that holds the program's entry point (.NET 6 and later).
    pub entry_assembly: Option<String>,
    /// The product version of the runtime, `9.0.7` or `9.0.7+commit` (.NET 6 and later).
    pub runtime_version: Option<String>,
}

impl ProcessInfo {
    /// `second`: the payload is that of `ProcessInfo2`.
    pub(crate) fn parse(payload: &[u8], second: bool) -> Result<Self, DiagnosticsError> {
        let mut fields = Fields(payload);
        let mut info = Self {
            pid: u64::from_le_bytes(*fields.take()?),
            cookie: *fields.take()?,
            command_line: fields.string()?,
            operating_system: fields.string()?,
            architecture: fields.string()?,
            ..Self::default()
        };
        if second {
            info.entry_assembly = Some(fields.string()?);
            info.runtime_version = Some(fields.string()?);
        }
        Ok(info)
    }
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Result<&'a [u8; N], DiagnosticsError> {
        let (first, rest) =
            self.0.split_first_chunk().ok_or(DiagnosticsError::Malformed("it ends in a field"))?;
        self.0 = rest;
        Ok(first)
    }

    /// A string without its final NUL; what is no character becomes a replacement character.
    fn string(&mut self) -> Result<String, DiagnosticsError> {
        let units = u32::from_le_bytes(*self.take()?);
        let length = usize::try_from(units).ok().and_then(|units| units.checked_mul(2));
        let (text, rest) = length
            .and_then(|length| self.0.split_at_checked(length))
            .ok_or(DiagnosticsError::Malformed("a string is longer than the answer"))?;
        self.0 = rest;
        let units = text.as_chunks().0.iter().map(|unit| u16::from_le_bytes(*unit));
        let text = char::decode_utf16(units.take_while(|unit| *unit != 0));
        Ok(text.map(|character| character.unwrap_or(char::REPLACEMENT_CHARACTER)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::put_string;
    use super::*;

    fn payload(strings: &[&str]) -> Vec<u8> {
        let mut payload = 17_u64.to_le_bytes().to_vec();
        payload.extend([7; 16]);
        strings.iter().for_each(|text| put_string(&mut payload, text));
        payload
    }

    #[test]
    fn both_forms_are_read() {
        let bytes = payload(&["dotnet exec ä.dll", "Linux", "x64", "ä", "9.0.7"]);
        let info = ProcessInfo::parse(&bytes, true).unwrap();
        assert_eq!((info.pid, info.command_line.as_str()), (17, "dotnet exec ä.dll"));
        assert_eq!(info.runtime_version.as_deref(), Some("9.0.7"));
        let first = ProcessInfo::parse(&bytes, false).unwrap();
        assert_eq!((first.architecture.as_str(), first.runtime_version), ("x64", None));
    }

    #[test]
    fn sizes_that_lie_are_refused() {
        let bytes = payload(&["a", "b", "c", "d"]);
        assert!(ProcessInfo::parse(&bytes, true).is_err());
        for length in 0..bytes.len() {
            assert!(ProcessInfo::parse(&bytes[..length], true).is_err());
        }
        let mut huge = payload(&[]);
        huge.extend(u32::MAX.to_le_bytes());
        huge.extend([b'x'; 100]);
        assert!(ProcessInfo::parse(&huge, false).is_err());
    }

    #[test]
    fn text_that_is_no_text_is_replaced() {
        let mut bytes = payload(&[]);
        bytes.extend(2_u32.to_le_bytes());
        bytes.extend([0x00, 0xd8, 0x41, 0x00]);
        bytes.extend([0; 8]);
        assert_eq!(ProcessInfo::parse(&bytes, false).unwrap().command_line, "\u{fffd}A");
    }
}

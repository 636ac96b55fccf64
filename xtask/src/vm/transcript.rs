//! A guest's output: named sections, each with the exit status of the command behind it.

use std::collections::BTreeMap;

pub struct Transcript {
    sections: BTreeMap<String, Section>,
    /// The section that was begun last, and when the guest's clock said so.
    last: Option<(String, String)>,
    complete: bool,
}

pub struct Section {
    pub text: String,
    pub status: i32,
}

impl Transcript {
    pub fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut transcript = Transcript { sections: BTreeMap::new(), last: None, complete: false };
        let mut body = String::new();
        for line in text.lines() {
            match line.strip_prefix("@@@ ").map(|words| words.split(' ').collect::<Vec<_>>()) {
                Some(words) => match words[..] {
                    ["begin", name, at] => {
                        body.clear();
                        transcript.last = Some((name.to_owned(), at.to_owned()));
                    }
                    ["end", name, status] => {
                        let text = std::mem::take(&mut body);
                        let status = status.parse().unwrap_or(-1);
                        transcript.sections.insert(name.to_owned(), Section { text, status });
                    }
                    ["done"] => transcript.complete = true,
                    _ => {}
                },
                None => {
                    body.push_str(line);
                    body.push('\n');
                }
            }
        }
        transcript
    }

    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Where a guest was that did not finish.
    pub fn place(&self) -> String {
        match &self.last {
            None => "no section was begun".to_owned(),
            Some((name, at)) => format!("the last section is `{name}`, begun {at} s after boot"),
        }
    }

    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.get(name)
    }
}

#[cfg(test)]
mod tests {
    use super::Transcript;

    #[test]
    fn a_section_has_its_text_and_status() {
        let words =
            b"noise\r\n@@@ begin doctor 1.50\r\nall well\r\n@@@ end doctor 3\r\n@@@ done\r\n";
        let transcript = Transcript::parse(words);
        let doctor = transcript.section("doctor").unwrap();
        assert_eq!((doctor.text.as_str(), doctor.status), ("all well\n", 3));
        assert!(transcript.is_complete());
    }

    #[test]
    fn a_guest_that_stopped_midway_is_incomplete() {
        let transcript = Transcript::parse(b"@@@ begin record 4.10\nloading\n");
        assert!(!transcript.is_complete() && transcript.section("record").is_none());
        assert!(transcript.place().contains("`record`, begun 4.10 s"));
    }
}

//! The text of an error with what caused it: `could not write FILE: No space left on device`.

use std::error::Error;

pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(known) = cause {
        text += &format!(": {known}");
        cause = known.source();
    }
    text
}

//! `--open`: the flame graph in the user's browser.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::user::{User, become_user_of};

/// What opens a file on a desktop, in this order.
const OPENERS: [&str; 3] = ["xdg-open", "sensible-browser", "firefox"];

/// Opens a file, as the user that it belongs to: a browser does not run as root.
pub fn open(path: &Path, user: Option<&User>) -> Result<()> {
    let path = std::fs::canonicalize(path).with_context(|| format!("`{}`", path.display()))?;
    let chosen = std::env::var("BROWSER").ok().filter(|browser| !browser.is_empty());
    let openers = chosen.iter().map(String::as_str).chain(OPENERS);
    for opener in openers {
        let mut command = Command::new(opener);
        command.arg(&path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        become_user_of(&mut command, user)?;
        // It is not waited for: a browser may stay.
        if command.spawn().is_ok() {
            return Ok(());
        }
    }
    bail!(
        "no browser was found to open it (BROWSER, {}): open file://{} yourself",
        OPENERS.join(", "),
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_that_is_not_there_is_named() {
        let error = open(Path::new("/nowhere/p.svg"), None).expect_err("there is none");
        assert!(error.to_string().contains("/nowhere/p.svg"));
    }
}

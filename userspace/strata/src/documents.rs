//! Shell completions and manual pages, made from the command line's own definition. The release
//! archive has them (`cargo xtask dist`).

use std::fs;
use std::io;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;

const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

/// Writes `completions/` and `man/` into a folder.
pub fn write(folder: &Path) -> io::Result<()> {
    let (completions, manual) = (folder.join("completions"), folder.join("man"));
    fs::create_dir_all(&completions)?;
    fs::create_dir_all(&manual)?;
    for shell in SHELLS {
        clap_complete::generate_to(shell, &mut Cli::command(), "strata", &completions)?;
    }
    clap_mangen::generate_to(Cli::command(), &manual)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn bash_completes_a_command_and_its_options() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        let complete = |words: &str, last: &str| {
            let script = format!(
                "source \"$0\"; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
                 _strata strata {last}; echo \"${{COMPREPLY[@]}}\""
            );
            let file = folder.path().join("completions/strata.bash");
            let done = Command::new("bash").args(["-c", &script]).arg(file).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            String::from_utf8(done.stdout).unwrap().trim().to_owned()
        };
        assert_eq!(complete("strata rec", "rec"), "record");
        assert_eq!(complete("strata record --dura", "--dura"), "--duration");
        // Options that take one of some words offer them.
        assert_eq!(complete("strata record --format fold", "fold --format"), "folded");
        assert!(!complete("strata ''", "''").contains("internal"));
    }

    #[test]
    fn every_command_has_a_manual_page_with_its_options() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        let page = |name: &str| fs::read_to_string(folder.path().join("man").join(name)).unwrap();
        for command in Cli::command().get_subcommands() {
            let name = format!("strata-{}.1", command.get_name());
            let text = page(&name);
            assert!(text.contains(".TH") && text.contains(".SH SYNOPSIS"), "{name}");
            assert!(page("strata.1").contains(&name.replace('-', "\\-").replace(".1", "(1)")));
        }
        assert!(page("strata-record.1").contains("\\-\\-duration"));
    }

    #[test]
    fn each_shell_has_its_file() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        for name in ["strata.bash", "_strata", "strata.fish"] {
            let text = fs::read_to_string(folder.path().join("completions").join(name)).unwrap();
            assert!(text.contains("doctor"), "{name}");
        }
    }
}

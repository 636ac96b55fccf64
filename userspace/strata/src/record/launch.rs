//! The command after `--`, run as the right user.
//!
//! Under `sudo` that is the user who called it: profiling a program must not make it root.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use strata_clr::environment::Variable;
use tokio::process::{Child, Command};

use crate::priority::set_priority;
use crate::user::{User, become_user};

/// The name that the kernel gives the process at its exec: the file's, of which it keeps 15 bytes.
fn comm_of(program: &OsStr) -> CString {
    let name = Path::new(program).file_name().unwrap_or(program);
    CString::new(name.as_bytes()).unwrap_or_default()
}

/// Starts the command, with these variables besides its usual ones. It shares strata's terminal,
/// files and process group.
pub fn start(command: &[OsString], user: Option<&User>, variables: &[Variable]) -> Result<Child> {
    let [program, arguments @ ..] = command else { bail!("no command to run") };
    let mut starting = Command::new(program);
    starting.args(arguments).kill_on_drop(false);
    starting.envs(variables.iter().map(|variable| (variable.name, &variable.value)));
    let name = comm_of(program);
    // SAFETY: only system calls that may follow a fork.
    unsafe {
        starting.pre_exec(move || {
            // What is sampled between the fork and the exec is the command's, not a process `strata`.
            libc::prctl(libc::PR_SET_NAME, name.as_ptr());
            set_priority(0);
            Ok(())
        });
    }
    if let Some(user) = user {
        starting.env("HOME", &user.home).env("USER", &user.name).env("LOGNAME", &user.name);
        let name = CString::new(user.name.as_bytes()).context("a user name with a NUL")?;
        let (uid, gid) = (user.uid, user.gid);
        // SAFETY: only system calls that may follow a fork.
        unsafe {
            starting.pre_exec(move || become_user(&name, uid, gid));
        }
    }
    starting.spawn().with_context(|| {
        format!("`{}` cannot be started", program.to_string_lossy().escape_debug())
    })
}

//! The user whose recording it is: under `sudo` the one who called it.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, Result};

/// A user of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub name: OsString,
    pub home: OsString,
}

impl User {
    pub fn by_id(uid: u32) -> Option<Self> {
        // SAFETY: the result is copied before anything else asks for a user.
        unsafe { Self::from_entry(libc::getpwuid(uid)) }
    }

    pub fn by_name(name: &str) -> Option<Self> {
        let name = CString::new(name).ok()?;
        // SAFETY: as above; a valid C string.
        unsafe { Self::from_entry(libc::getpwnam(name.as_ptr())) }
    }

    /// # Safety
    /// `entry` must be what `getpwuid` or `getpwnam` has just returned.
    unsafe fn from_entry(entry: *const libc::passwd) -> Option<Self> {
        if entry.is_null() {
            return None;
        }
        // SAFETY: by the caller's promise; the strings are NUL-terminated.
        unsafe {
            let text =
                |text: *const libc::c_char| OsStr::from_bytes(CStr::from_ptr(text).to_bytes());
            Some(Self {
                uid: (*entry).pw_uid,
                gid: (*entry).pw_gid,
                name: text((*entry).pw_name).to_owned(),
                home: text((*entry).pw_dir).to_owned(),
            })
        }
    }

    /// The owner of a recording: `--user`, else the caller of `sudo`; `None` means this process's
    /// own user.
    pub fn of_recording(asked: Option<&str>) -> Result<Option<Self>> {
        if let Some(name) = asked {
            let by_number = name.parse().ok().and_then(Self::by_id);
            let user = Self::by_name(name).or(by_number);
            return Ok(Some(user.with_context(|| format!("there is no user `{name}`"))?));
        }
        // SAFETY: no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            return Ok(None);
        }
        let Some(uid) = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse::<u32>().ok())
        else {
            return Ok(None);
        };
        if uid == 0 {
            return Ok(None);
        }
        let gid = std::env::var("SUDO_GID").ok().and_then(|gid| gid.parse::<u32>().ok());
        let known = Self::by_id(uid);
        Ok(Some(match known {
            Some(user) => User { gid: gid.unwrap_or(user.gid), ..user },
            None => Self {
                uid,
                gid: gid.unwrap_or(uid),
                name: std::env::var_os("SUDO_USER").unwrap_or_default(),
                home: "/".into(),
            },
        }))
    }
}

/// Has a command of the standard library run as this user, in a session of its own.
pub fn become_user_of(command: &mut std::process::Command, user: Option<&User>) -> Result<()> {
    use std::os::unix::process::CommandExt;
    command.process_group(0);
    let Some(user) = user else { return Ok(()) };
    command.env("HOME", &user.home).env("USER", &user.name).env("LOGNAME", &user.name);
    let name = CString::new(user.name.as_bytes()).context("a user name with a NUL")?;
    let (uid, gid) = (user.uid, user.gid);
    // SAFETY: only system calls that may follow a fork.
    unsafe {
        command.pre_exec(move || become_user(&name, uid, gid));
    }
    Ok(())
}

pub fn become_user(name: &CStr, uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: no preconditions.
    let already = unsafe { libc::geteuid() == uid && libc::getegid() == gid };
    if already {
        return Ok(());
    }
    let check = |result: i32| {
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: a valid C string and plain numbers.
    unsafe {
        check(libc::initgroups(name.as_ptr(), gid))?;
        check(libc::setgid(gid))?;
        check(libc::setuid(uid))
    }
}

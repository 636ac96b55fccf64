//! Processes whose main thread has ended before others.
//!
//! `/proc/PID` of such a process shows neither its memory nor its files; `/proc/PID/task/TID` of a thread
//! that goes on does. Invariant: a thread may end, and its number be another process's, before what was found
//! is used: below the process's own directory there is nothing then.

use crate::process_text::Stat;

/// Threads of a process that are looked at.
const MOST: usize = 64;

/// A thread of a process that has not ended, beside the main one.
#[must_use]
pub fn living_thread(pid: u32) -> Option<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let threads = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
    threads.filter(|tid| *tid != pid).take(MOST).find(|tid| lives(pid, *tid))
}

fn lives(pid: u32, tid: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/task/{tid}/stat")).unwrap_or_default();
    Stat::parse(&stat).and_then(|stat| stat.field(3)).is_some_and(|state| !is_over(state))
}

/// Whether a thread in this state has ended.
pub fn is_over(state: &str) -> bool {
    matches!(state, "Z" | "X")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_goes_on_is_another_than_the_main_one() {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || receiver.recv());
        let own = std::process::id();
        let found = living_thread(own).unwrap();
        assert!(found != own && lives(own, found));
        drop(sender);
        thread.join().unwrap().unwrap_err();
        assert_eq!(living_thread(u32::MAX), None);
    }
}

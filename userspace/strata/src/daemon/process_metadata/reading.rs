//! Reads a process's metadata from `/proc`, while the process is alive.
//!
//! Its environment and its command line lie in its memory: reading them takes that memory's lock
//! and may wait for its pages, for as long as the process chooses. So this runs on a thread off the
//! event loop.
//!
//! Invariant: everything read here is untrusted, and bounded.

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use strata_config::rules::Rule;
use strata_metadata::Environment;
use strata_metadata::environment::{MAX_BLOCK, Use, use_of};
use strata_sandbox::living_thread;
use strata_sandbox::process_text::Stat;

use uuid::Uuid;

use strata_agent::blocking_reader::{BlockingReader, Patience};
use strata_agent::engine::monotonic_nanos;

/// The most bytes kept of one process's environment; dropped ones are counted.
const MOST_KEPT: usize = 16 << 10;
/// The most bytes read of a command line.
const MAX_COMMAND: u64 = 16 << 10;
/// The time limit of reading one process: it takes a fraction of a millisecond, unless it hangs.
const PATIENCE: Patience = Patience { limit: Duration::from_millis(250), threads: 64, of_one: 8 };

/// Reads processes, one after the other.
pub type Reader = BlockingReader<Question, Seen>;

pub fn reader() -> Reader {
    BlockingReader::new("metadata", PATIENCE, |question: Question| {
        Seen::read(question.pid, &question.wanted)
    })
}

#[derive(Clone, Debug)]
pub struct Question {
    pub pid: u32,
    pub wanted: Arc<Wanted>,
}

/// What rules need of an environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Names of variables that they compare.
    pub variables: Vec<String>,
    /// One of them lets a target choose where its data goes.
    pub own_destination: bool,
}

impl Wanted {
    pub fn of(rules: &[Rule]) -> Self {
        let names = rules.iter().flat_map(|rule| rule.conditions.env.iter());
        let mut variables: Vec<String> = names.map(|(name, _)| name.clone()).collect();
        variables.sort();
        variables.dedup();
        let own_destination = rules.iter().any(|rule| rule.own_destination.value == Some(true));
        Self { variables, own_destination }
    }
}

/// The longest name that the kernel keeps of a process.
const MOST_COMM: usize = 15;

/// The metadata read from a process.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// When it had been read, by the clock of events.
    pub at: u64,
    /// The variables that are used, as a block. Of those for endpoints and credentials only that
    /// they are set.
    pub environment: Vec<u8>,
    /// Used variables that had no room in it.
    pub not_kept: u32,
    pub exe: Option<String>,
    /// The name that its program was started by, where a link has another one.
    pub called: Option<String>,
    /// It is in the mount namespace of the host's first process.
    pub is_in_host: bool,
    /// If it is a .NET process.
    pub entry_assembly: Option<String>,
    /// A thread of the kernel: there are hundreds, with names that come and go.
    pub is_kernels: bool,
    /// Something else is where its environment was: it shows its title there (PostgreSQL, nginx, Redis).
    pub is_overwritten: bool,
    /// There is no environment at all: it has none, or it is not there yet. It comes last of what
    /// executing a program makes (`create_elf_tables` in fs/binfmt_elf.c), and is empty until then
    /// (`environ_read` in fs/proc/base.c, Linux 6.1).
    pub is_bare: bool,
}

impl Seen {
    /// The process has ended, or not even root may read it.
    pub fn is_nothing(&self) -> bool {
        self.exe.is_none() && self.environment.is_empty()
    }

    fn read(pid: u32, wanted: &Wanted) -> Self {
        let mut place = format!("/proc/{pid}");
        let mut exe = exe_of(&place);
        let is_kernels = exe.is_none() && is_kernels(pid);
        // Where its main thread has ended, another shows what it was started with.
        if exe.is_none()
            && !is_kernels
            && let Some(thread) = living_thread(pid)
        {
            place = format!("{place}/task/{thread}");
            exe = exe_of(&place);
        }
        let block = if is_kernels { None } else { block_of(&place) };
        let text = block.as_deref().unwrap_or_default();
        let (environment, not_kept) = used(text, wanted);
        Self {
            is_overwritten: !text.is_empty() && Environment::new(text).variables().next().is_none(),
            is_bare: block.as_ref().is_some_and(Vec::is_empty),
            environment,
            not_kept,
            entry_assembly: entry_assembly(&place, exe.as_deref()),
            called: exe.as_deref().and_then(|exe| called(&place, exe)),
            is_in_host: is_in_host(&place),
            is_kernels,
            exe,
            at: monotonic_nanos(),
        }
    }
}

fn exe_of(place: &str) -> Option<String> {
    let path = std::fs::read_link(format!("{place}/exe")).ok()?;
    let path = path.as_os_str().as_bytes();
    // A program that was upgraded since is still the one that rules name.
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    Some(String::from_utf8_lossy(path).into_owned())
}

fn is_in_host(place: &str) -> bool {
    let of = |place: &str| std::fs::read_link(format!("{place}/ns/mnt")).ok();
    of(place).is_some_and(|own| of("/proc/1") == Some(own))
}

/// Whether it is a thread of the kernel: those have no memory of their own.
fn is_kernels(pid: u32) -> bool {
    let stat = stat_of(pid);
    Stat::parse(&stat).is_some_and(|stat| stat.is_kernel_thread())
}

fn stat_of(pid: u32) -> Vec<u8> {
    std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default()
}

fn block_of(place: &str) -> Option<Vec<u8>> {
    let mut block = Vec::new();
    let file = File::open(format!("{place}/environ")).ok()?;
    file.take(MAX_BLOCK as u64 + 1).read_to_end(&mut block).ok()?;
    Some(block)
}

/// The variables of a process that strata or its rules use, and how many had no room.
fn used(block: &[u8], wanted: &Wanted) -> (Vec<u8>, u32) {
    let (mut kept, mut not_kept) = (Vec::new(), 0_u32);
    for (name, value) in Environment::new(block).variables() {
        let is_compared = wanted.variables.iter().any(|wanted| wanted.as_bytes() == name);
        let value = match use_of(name, wanted.own_destination) {
            _ if is_compared => value,
            Use::Value => value,
            Use::Name if value.is_empty() => value,
            Use::Name => IS_SET,
            Use::Nothing => continue,
        };
        if name.len() + value.len() + 2 > MOST_KEPT.saturating_sub(kept.len()) {
            not_kept = not_kept.saturating_add(1);
            continue;
        }
        for part in [name, b"=", value, b"\0"] {
            kept.extend_from_slice(part);
        }
    }
    kept.shrink_to_fit();
    (kept, not_kept)
}

/// The placeholder of a value that is not used.
const IS_SET: &[u8] = b"(set)";

/// The assembly that a .NET process was started with: the first argument of its host that is one,
/// else the program itself.
fn entry_assembly(place: &str, exe: Option<&str>) -> Option<String> {
    let exe = exe?.trim_end_matches(" (deleted)");
    let name = exe.rsplit('/').next()?;
    if name != "dotnet" && name != "corerun" {
        return Some(name.to_owned());
    }
    let command = command_of(place)?;
    let mut arguments = command.split(|byte| *byte == 0).skip(1);
    let assembly =
        arguments.find(|argument| argument.ends_with(b".dll") || argument.ends_with(b".exe"))?;
    Some(String::from_utf8_lossy(assembly).into_owned())
}

fn command_of(place: &str) -> Option<Vec<u8>> {
    let mut command = Vec::new();
    let file = File::open(format!("{place}/cmdline")).ok()?;
    file.take(MAX_COMMAND).read_to_end(&mut command).ok()?;
    Some(command)
}

/// The name of the link that a program was started by: `redis-server` is one to `redis-check-rdb`, `ls`
/// one to `busybox`. The kernel names a process after it, until the process names itself, and its first
/// argument is another one where a script was started. Versions are no names of their own (`python3`), and
/// titles that programs give themselves are no files' names (`gunicorn: worker`), unless they begin with one
/// (`redis-server *:6379`).
fn called(place: &str, exe: &str) -> Option<String> {
    let name = exe.trim_end_matches(" (deleted)").rsplit('/').next()?;
    let comm = std::fs::read(format!("{place}/comm")).ok()?;
    let comm = comm.trim_ascii_end();
    if comm.is_empty() || name.as_bytes().starts_with(comm) {
        return None;
    }
    let command = command_of(place)?;
    let first = command.split(|byte| *byte == 0).next()?;
    let word = first.split(|byte| *byte == b' ').next()?;
    let named = [first, word].map(|text| text.rsplit(|byte| *byte == b'/').next().unwrap_or(text));
    let name = named.into_iter().find(|name| is_named(name, comm))?;
    Some(String::from_utf8_lossy(name).into_owned())
}

/// Whether the kernel named a process after this file.
fn is_named(name: &[u8], comm: &[u8]) -> bool {
    name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"._+-@".contains(byte))
        && name.starts_with(comm)
        && (name.len() == comm.len() || comm.len() == MOST_COMM)
}

/// How old a process is; `None` when it is gone.
pub fn age_of(pid: u32) -> Option<Duration> {
    let started = Stat::parse(&stat_of(pid))?.start_time()?;
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the result; neither call has other preconditions.
    let ticks = unsafe {
        libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now);
        libc::sysconf(libc::_SC_CLK_TCK)
    };
    let ticks = u64::try_from(ticks).unwrap_or(100).max(1);
    let now = u64::try_from(now.tv_sec).unwrap_or(0) * 1000 + now.tv_nsec as u64 / 1_000_000;
    let started = started.saturating_mul(1000) / ticks;
    Some(Duration::from_millis(now.saturating_sub(started)))
}

/// A stable id of a process, the same for every strata: of this start of the host, its number and
/// when it was started. `None` when it is gone.
pub fn runtime_id(pid: u32) -> Option<Uuid> {
    static BOOT: OnceLock<String> = OnceLock::new();
    let started = Stat::parse(&stat_of(pid))?.start_time()?;
    let boot = BOOT.get_or_init(|| {
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
    });
    let hash = xxhash_rust::xxh3::xxh3_128(format!("{boot} {pid} {started}").as_bytes());
    Some(uuid::Builder::from_random_bytes(hash.to_le_bytes()).into_uuid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_a_link_starts_is_called_as_the_link() {
        let folder = tempfile::tempdir().expect("a directory");
        let called = |link: &str, name: Option<&str>| {
            let path = folder.path().join(link);
            std::os::unix::fs::symlink("/bin/sleep", &path).expect("a link");
            let mut command = std::process::Command::new(&path);
            if let Some(name) = name {
                std::os::unix::process::CommandExt::arg0(&mut command, name);
            }
            let mut child = command.arg("60").spawn().expect("it starts");
            // A process has its name, and then its arguments, a moment later than this one goes on.
            let read = |name: &str| std::fs::read(format!("/proc/{}/{name}", child.id()));
            let is_there = || {
                let is_named = read("comm")
                    .is_ok_and(|comm| link.as_bytes().starts_with(comm.trim_ascii_end()));
                is_named && read("cmdline").is_ok_and(|command| !command.is_empty())
            };
            while !is_there() {
                std::thread::yield_now();
            }
            let seen = Seen::read(child.id(), &Wanted::of(&[]));
            child.kill().and_then(|()| child.wait()).expect("it ends");
            (seen.exe.is_some_and(|exe| exe.ends_with("/sleep")), seen.called)
        };
        let long = "a-server-with-a-long-name";
        assert_eq!(called(long, None), (true, Some(long.to_owned())));
        assert_eq!(called("server", None), (true, Some("server".to_owned())));
        assert_eq!(called("server: worker 7", None), (true, None));
        // A version, and a program whose first argument is something else.
        assert_eq!(called("sl", None), (true, None));
        assert_eq!(called("other", Some("a title: of its own")), (true, None));
        // A title that begins with the name, and one of a path with a space.
        assert_eq!(called("own", Some("own *:6379")), (true, Some("own".to_owned())));
        assert_eq!(called("sly", Some("/opt/a b/sly")), (true, Some("sly".to_owned())));
    }

    #[test]
    fn a_process_has_the_same_runtime_id_whenever_it_is_read() {
        let own = runtime_id(std::process::id()).expect("it is there");
        assert_eq!(runtime_id(std::process::id()), Some(own));
        let mut child = std::process::Command::new("/bin/sleep").arg("60").spawn().unwrap();
        assert_ne!(runtime_id(child.id()), Some(own));
        child.kill().expect("it is there");
        child.wait().expect("it was there");
        assert_eq!(runtime_id(u32::MAX), None);
    }

    #[test]
    fn this_process_is_young_and_not_the_kernels() {
        let pid = std::process::id();
        assert!(!is_kernels(pid));
        assert!(age_of(pid).expect("it is there") < Duration::from_secs(3600));
        let threads: Vec<u32> = (2..20).filter(|pid| is_kernels(*pid)).collect();
        println!("threads of the kernel: {threads:?}");
        assert_eq!(age_of(u32::MAX), None);
    }

    #[test]
    fn a_process_is_read_with_what_is_understood_of_its_environment() {
        let mut command = std::process::Command::new("/bin/sleep");
        command.arg("60").env_clear().env("DD_SERVICE", "shop").env("TEAM", "a").env("OTHER", "b");
        command.env("DD_API_KEY", "secret").env("DD_APP_KEY", "secret").env("OTEL_OTHER", "secret");
        command.env("PYROSCOPE_AUTH_TOKEN", "").env("DD_GIT_COMMIT_SHA", "4f1d");
        let mut child = command.spawn().expect("it starts");
        let wanted = Wanted { variables: vec!["TEAM".to_owned()], own_destination: false };
        let mut seen = Seen::read(child.id(), &wanted);
        // The child may be on its way into its program still.
        while seen.environment.is_empty()
            || !seen.exe.as_ref().is_some_and(|exe| exe.contains("/bin/"))
        {
            seen = Seen::read(child.id(), &wanted);
        }
        child.kill().expect("it is there");
        child.wait().expect("it was there");
        let environment = Environment::new(&seen.environment);
        let mut variables: Vec<_> = environment.variables().collect();
        variables.sort();
        let expected: [(&[u8], &[u8]); 5] = [
            (b"DD_API_KEY", IS_SET),
            (b"DD_GIT_COMMIT_SHA", b"4f1d"),
            (b"DD_SERVICE", b"shop"),
            (b"PYROSCOPE_AUTH_TOKEN", b""),
            (b"TEAM", b"a"),
        ];
        assert_eq!(variables, expected);
        assert!(!seen.is_kernels && !seen.is_bare && seen.at > 0);
    }

    #[test]
    fn where_data_goes_is_kept_only_for_a_rule_that_uses_it_and_what_has_no_room_is_counted() {
        let wanted = Wanted { variables: Vec::new(), own_destination: true };
        let (kept, not_kept) = used(b"DD_API_KEY=secret\0DD_APP_KEY=other\0", &wanted);
        assert_eq!((&kept[..], not_kept), (&b"DD_API_KEY=secret\0"[..], 0));
        let long = [b"DD_TAGS=".to_vec(), vec![b'x'; MOST_KEPT], b"\0DD_ENV=a\0".to_vec()].concat();
        let (kept, not_kept) = used(&long, &Wanted::default());
        assert_eq!((&kept[..], not_kept), (&b"DD_ENV=a\0"[..], 1));
    }

    #[test]
    fn a_process_that_is_gone_has_nothing_to_be_read() {
        let seen = Seen::read(u32::MAX, &Wanted::default());
        assert!(seen.environment.is_empty() && seen.exe.is_none() && !seen.is_bare);
    }
}

//! Programs that unload code all the time survive every attach.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use strata_bridge_protocol::record::Record;
use strata_clr::session::{Budget, Life, Loss, Question, SessionOptions};
use strata_clr::{AttachOptions, Session, attach};
use strata_tests::machine;
use strata_tests::running::{Running, wait_until};
use strata_tests::runtimes::{DotNet, Version, dotnet};

use crate::dotnet_running::{Wrongs, start};

/// Methods that exist for as long as the program runs.
const STABLE: [&str; 4] = ["StableBurn", "Collectible", "Emitted", "Turns"];

/// How long one attach may take, whatever else the machine does.
const PATIENCE_OF_ONE: Duration = Duration::from_secs(60);

pub fn start_unloading(dotnet: &DotNet, version: Version, seconds: &str) -> Result<Running> {
    let plugin = dotnet.library(version, "UnloadingPlugin")?;
    let plugin = plugin.to_str().context("a path that is text")?;
    let app = start(dotnet, version, "Unloading", &[seconds, plugin])?;
    // Its stable methods have been compiled.
    wait_until("it has made some turns", PATIENCE_OF_ONE, || {
        counts(&app).is_ok_and(|(turns, _)| turns >= 8)
    })?;
    Ok(app)
}

/// What the program says of itself: turns and failures.
pub fn counts(app: &Running) -> Result<(u64, u64)> {
    let said = app.said();
    let line = said.lines().rev().find(|line| line.starts_with("turns "));
    let words: Vec<&str> = line.context("no counts")?.split(' ').collect();
    match words[..] {
        [_, turns, _, failures] => Ok((turns.parse()?, failures.parse()?)),
        _ => bail!("{words:?}"),
    }
}

/// What many attaches saw.
#[derive(Default)]
struct Seen {
    attaches: usize,
    /// Without the name of one of the stable methods.
    unnamed: Vec<(usize, Vec<&'static str>)>,
    answered: usize,
    unanswered: usize,
    /// Waits of an unload that were given up.
    given_up: u64,
    panics: u64,
    /// Addresses of code that is gone by now, mostly.
    addresses: Vec<u64>,
    slowest: Duration,
}

impl Seen {
    fn attach_once(&mut self, pid: u32) -> Result<()> {
        let began = Instant::now();
        let options = SessionOptions { owner_name: "test".to_owned(), ..Default::default() };
        let options = AttachOptions { session: options, time: PATIENCE_OF_ONE };
        let mut session = attach(pid, &options)?.session;
        self.attaches += 1;
        let asked: Vec<u64> = self.addresses.iter().rev().take(200).copied().collect();
        session.ask(asked.iter().map(|ip| Question::Address(*ip)));
        let mut names = HashSet::new();
        let mut addresses = Vec::new();
        while !session.is_enumerated() || session.open_questions() > 0 {
            self.read(&mut session, &mut names, &mut addresses)?;
            if began.elapsed() > PATIENCE_OF_ONE {
                let open = session.open_questions();
                bail!("enumerated: {}, {open} questions open", session.is_enumerated());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let absent: Vec<_> = STABLE.into_iter().filter(|name| !names.contains(*name)).collect();
        if !absent.is_empty() {
            self.unnamed.push((self.attaches, absent));
        }
        self.addresses.extend(addresses);
        self.given_up += session.status().lost(Loss::UnloadNotAwaited);
        self.panics += session.status().lost(Loss::Panic);
        // Sometimes it stays for the next, as under a recording that was killed.
        if self.attaches.is_multiple_of(4) {
            session.release()?;
        } else if let Err(error) =
            session.detach_and_wait(PATIENCE_OF_ONE, Budget::default(), |_| {})
        {
            bail!("{error}: {:?}", session.status());
        }
        self.slowest = self.slowest.max(began.elapsed());
        Ok(())
    }

    fn read(
        &mut self,
        session: &mut Session,
        names: &mut HashSet<String>,
        addresses: &mut Vec<u64>,
    ) -> Result<()> {
        let read = session.look_and_poll(Budget::default())?;
        if read.life != Life::Running {
            bail!("the bridge is {:?}", read.life);
        }
        self.unanswered += read.unanswered.len();
        for entry in &read.entries {
            match &entry.record {
                Record::Method(method) => {
                    let is_answer = method.asked_ip != 0;
                    self.answered += usize::from(is_answer);
                    names.insert(method.name.clone());
                    let short_lived = ["Dynamic", "Work", "Run", "Add"];
                    if !is_answer && short_lived.contains(&method.name.as_str()) {
                        addresses.extend(method.ranges.first().map(|code| code.start + 1));
                    }
                }
                Record::NotFound(_) => self.answered += 1,
                _ => {}
            }
        }
        Ok(())
    }
}

#[test]
fn a_program_that_unloads_code_all_the_time_survives_every_attach() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    let mut wrongs = Wrongs::default();
    let attaches = match std::env::var("STRATA_TEST_ATTACHES") {
        Ok(number) => number.parse()?,
        Err(_) => machine::short_or_long(40, 500),
    };
    for version in versions(&dotnet)? {
        let began = Instant::now();
        let mut seen = Seen::default();
        let mut deaths = 0;
        while seen.attaches < attaches {
            let mut app = start_unloading(&dotnet, version, "3600")?;
            let pid = u32::try_from(app.pid())?;
            let mut problem = None;
            while problem.is_none() && seen.attaches < attaches {
                problem = seen.attach_once(pid).err();
            }
            let alive = app.is_alive();
            let counted = counts(&app);
            let other = problem.as_ref().filter(|_| alive);
            wrongs.unless(other.is_none(), || format!("{version}: {problem:?}"));
            wrongs.unless(matches!(counted, Ok((turns, 0)) if turns > 0), || {
                format!("{version}: turns and failures {counted:?}")
            });
            if !alive {
                deaths += 1;
                println!("{version}: ended in attach {}: {problem:?}", seen.attaches);
            } else if problem.is_some() {
                break;
            } else {
                println!("{version}: turns and failures {counted:?}");
            }
        }
        println!(
            "{version}: {} attaches in {:.1?}, slowest {:.1?}, died {deaths} times, {} asked about old code answered, {} refused, {} waits given up, unnamed {:?}",
            seen.attaches,
            began.elapsed(),
            seen.slowest,
            seen.answered,
            seen.unanswered,
            seen.given_up,
            seen.unnamed
        );
        wrongs.unless(deaths == 0, || format!("{version}: died {deaths} times"));
        wrongs.unless(seen.unnamed.is_empty(), || format!("{version}: {:?}", seen.unnamed));
        wrongs.unless(seen.given_up == 0, || format!("{version}: {} given up", seen.given_up));
        wrongs.unless(seen.panics == 0, || format!("{version}: {} panics", seen.panics));
    }
    wrongs.none();
    Ok(())
}

/// All, or the one in `STRATA_TEST_RUNTIME` (`3.1`, `8`, `9`, `10`).
fn versions(dotnet: &DotNet) -> Result<Vec<Version>> {
    let all = dotnet.versions();
    let Ok(wanted) = std::env::var("STRATA_TEST_RUNTIME") else { return Ok(all.to_vec()) };
    let one = all.into_iter().find(|version| version.to_string().ends_with(&format!(" {wanted}")));
    Ok(vec![one.context("no such runtime")?])
}

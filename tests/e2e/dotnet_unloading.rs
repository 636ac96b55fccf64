//! Programs that unload code all the time survive every attach.

use std::collections::HashSet;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use strata_bridge_protocol::record::Record;
use strata_clr::session::{Budget, Life, Loss, Question, SessionOptions};
use strata_clr::{AttachOptions, Session, attach};
use strata_tests::daemon::{Daemon, attaching_to};
use strata_tests::running::{Running, wait_until};
use strata_tests::runtimes::{DotNet, Version, dotnet};
use strata_tests::strata::record;
use strata_tests::{machine, places, text_outputs};

use crate::dotnet_running::{Wrongs, each, start, start_command};

/// Methods that exist for as long as the program runs.
const STABLE: [&str; 4] = ["StableBurn", "Collectible", "Emitted", "Turns"];

const EVERYTHING: &str = "cpu,wall,off_cpu,exceptions,locks,allocations,heap,gc,wait_handles";

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

/// The program's own counts: turns and failures, which are printed.
pub fn counts(app: &Running) -> Result<(u64, u64)> {
    let printed = app.printed();
    let line = printed.lines().rev().find(|line| line.starts_with("turns "));
    let words: Vec<&str> = line.context("no counts")?.split(' ').collect();
    for failure in printed.lines().filter(|line| line.starts_with("failure ")) {
        println!("{failure}");
    }
    match words[..] {
        [_, turns, _, failures] => Ok((turns.parse()?, failures.parse()?)),
        _ => bail!("{words:?}"),
    }
}

/// The totals of many attaches.
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
    /// Mostly addresses of code that has been unloaded.
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
    let attaches = match std::env::var("STRATA_TEST_ATTACHES") {
        Ok(number) => number.parse()?,
        Err(_) => machine::short_or_long(40, 500),
    };
    each(&versions(&dotnet)?, 2, |version, wrongs| {
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
        Ok(())
    })
}

/// All, or the one in `STRATA_TEST_RUNTIME` (`3.1`, `8`, `9`, `10`).
pub fn versions(dotnet: &DotNet) -> Result<Vec<Version>> {
    let all = dotnet.versions();
    let Ok(wanted) = std::env::var("STRATA_TEST_RUNTIME") else { return Ok(all.to_vec()) };
    let one = all.into_iter().find(|version| version.to_string().ends_with(&format!(" {wanted}")));
    Ok(vec![one.context("no such runtime")?])
}

/// How long programs live in which a daemon attaches at the age of a second.
const LIFE: Duration = Duration::from_secs(8);

#[test]
fn programs_that_unload_survive_a_daemon_that_attaches_early() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    let versions = versions(&dotnet)?;
    let mut daemon = Daemon::prepared()?;
    daemon.configure("[sampling]\nfrequency = 99\n[dotnet]\nage = \"1s\"\n")?;
    daemon.start()?;
    let until = Instant::now() + machine::short_or_long(LIFE * 2, Duration::from_secs(600));
    let mut wrongs = Wrongs::default();
    let mut lives = 0;
    while Instant::now() < until {
        let mut apps = versions
            .iter()
            .map(|version| Ok((*version, start_unloading(&dotnet, *version, "3600")?)))
            .collect::<Result<Vec<_>>>()?;
        std::thread::sleep(LIFE);
        for (version, app) in &mut apps {
            lives += 1;
            let counted = counts(app);
            wrongs.unless(app.is_alive(), || format!("{version}: died, {counted:?}"));
            wrongs.unless(matches!(counted, Ok((_, 0))), || format!("{version}: {counted:?}"));
        }
    }
    let status = daemon.status()?;
    let attached = status["dotnet"]["attached"].as_u64().unwrap_or(0);
    let losses = status["sampling"]["losses"].to_string();
    println!("{lives} programs of {LIFE:?} each, {attached} of them attached; losses {losses}");
    wrongs.unless(attached > 0, || "none was attached".to_owned());
    daemon.end()?;
    let mut command = Command::new(places::strata_binary()?);
    command.args(["query", "--service", "*", "-o", "all.folded", "--store"]).arg(daemon.store());
    command.current_dir(daemon.folder());
    let ended = Running::from_command(command)?.wait(PATIENCE_OF_ONE)?;
    wrongs.unless(ended.status.success(), || ended.stderr.clone());
    let stacks = text_outputs::folded(&fs::read_to_string(daemon.folder().join("all.folded"))?)?;
    let burns = |name: &str| {
        let stacks = stacks.iter().filter(|stack| stack.frames.iter().any(|f| f.contains(name)));
        stacks.map(|stack| stack.count).sum::<u64>()
    };
    let named = burns("Unloading.StableBurn");
    println!("{named} samples in StableBurn, {} in code that is unloaded", burns("Run"));
    wrongs.unless(named > 0, || "its stable method has no name".to_owned());
    wrongs.none();
    Ok(())
}

#[test]
fn programs_that_unload_survive_recordings_one_after_the_other() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    // More at once than there are CPUs: the runtime's threads are then interrupted between any two steps.
    let mut programs = versions(&dotnet)?;
    if let [one] = programs[..] {
        programs = vec![one; 3];
    }
    each(&programs, programs.len(), |version, wrongs| {
        let mut app = start_unloading(&dotnet, version, "3600")?;
        let mut shares = Vec::new();
        for _ in 0..machine::short_or_long(4, 30) {
            let recorded = record()?.pid(app.pid()).seconds(2.0).output("out.folded").run()?;
            let stacks = text_outputs::folded(&recorded.text("out.folded")?)?;
            let total: u64 = stacks.iter().map(|stack| stack.count).sum();
            let is_named = |stack: &&text_outputs::Folded| {
                stack.frames.iter().any(|frame| STABLE.iter().any(|name| frame.contains(name)))
            };
            let named: u64 = stacks.iter().filter(is_named).map(|stack| stack.count).sum();
            shares.push(named * 100 / total.max(1));
            // With everything that its runtime can report.
            let all = record()?.pid(app.pid()).option("-e", EVERYTHING).seconds(2.0);
            let clr = all.run()?.summary()?.0["clr"].clone();
            println!("{version}: {clr}");
            wrongs.unless(clr["attached"] == 1, || format!("{version}: {clr}"));
        }
        let counted = counts(&app);
        println!("{version}: % of samples below a stable method {shares:?}, {counted:?}");
        wrongs.unless(matches!(counted, Ok((_, 0))), || format!("{version}: {counted:?}"));
        if !app.is_alive() {
            let ended = app.wait(PATIENCE_OF_ONE)?;
            wrongs.unless(false, || format!("{version}: {}, {}", ended.status, ended.stderr));
        }
        wrongs.unless(shares.iter().all(|share| *share > 0), || format!("{version}: {shares:?}"));
        Ok(())
    })
}

/// Code that lives for some milliseconds, in memory that is mapped and unmapped with it.
#[test]
fn stacks_through_code_that_is_soon_unloaded_are_whole() -> Result<()> {
    const MOST_PERCENT: f64 = 1.0;
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    each(&versions(&dotnet)?, 2, |version, wrongs| {
        let app = start_unloading(&dotnet, version, "3600")?;
        let (before, _) = counts(&app)?;
        let record = record()?.pid(app.pid()).frequency(199).option("--events", "cpu");
        let recorded = record.seconds(6.0).run()?;
        let (after, failures) = counts(&app)?;
        let summary = recorded.summary()?.0;
        let samples = summary["samples"].as_u64().context("no samples")?;
        let lost = summary["losses"]["stack_no_mapping"].as_u64().unwrap_or(0);
        let refused = summary["losses"]["mappings_refused"].as_u64().unwrap_or(0);
        let percent = lost as f64 * 100.0 / samples.max(1) as f64;
        println!(
            "{version}: {lost} of {samples} samples ({percent:.2} %) lead to no known mapping; {} turns, {refused} mappings refused",
            after - before
        );
        wrongs
            .unless(failures == 0 && after > before, || format!("{version}: {failures} failures"));
        wrongs.unless(samples >= 100, || format!("{version}: {samples} samples"));
        wrongs.unless(percent <= MOST_PERCENT, || format!("{version}: {percent:.2} %"));
        Ok(())
    })
}

/// Methods a second, and for how long.
const METHODS: u64 = 2000;
const MAKING: Duration = Duration::from_secs(30);

/// A daemon's share for what it knows of runtimes holds a part of what the programs make.
#[test]
fn programs_that_make_and_drop_methods_for_long_keep_their_names() -> Result<()> {
    const SERVICES: [(Version, &str); 2] =
        [(Version::V9, "making-9"), (Version::V3_1, "making-3.1")];
    let _machine = machine::long_beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut wrongs = Wrongs::default();
    let making = machine::short_or_long(MAKING, MAKING * 10);
    let mut daemon = Daemon::prepared()?;
    daemon.configure(&format!(
        "memory_limit = \"96MB\"\n[sampling]\nfrequency = 499\n{}",
        attaching_to(&SERVICES.map(|(_, service)| service))
    ))?;
    daemon.start()?;
    let (seconds, rate) = (making.as_secs().to_string(), METHODS.to_string());
    let apps = SERVICES
        .iter()
        .map(|(version, service)| {
            let mut command = dotnet.program(*version, "DropsMethods", &[&seconds, &rate])?;
            command.env("DD_SERVICE", service);
            start_command(command)
        })
        .collect::<Result<Vec<_>>>()?;
    wait_until("they have made their methods", making + PATIENCE_OF_ONE, || {
        apps.iter().all(|app| app.printed().contains("ended made"))
    })?;
    let status = daemon.status()?;
    let losses = status["sampling"]["losses"].clone();
    let log = daemon.end()?.stderr;
    for ((version, service), app) in SERVICES.iter().zip(&apps) {
        let printed = app.printed();
        let last = printed.lines().find(|line| line.starts_with("ended made")).context("a line")?;
        let made: u64 = last.split(' ').nth(2).context("a number")?.parse()?;
        wrongs.unless(last.ends_with(" failures 0"), || format!("{version}: {last}"));
        let mut command = Command::new(places::strata_binary()?);
        command.args(["query", "--service", service, "-o", "all.folded", "--store"]);
        command.arg(daemon.store()).current_dir(daemon.folder());
        let ended = Running::from_command(command)?.wait(PATIENCE_OF_ONE)?;
        wrongs.unless(ended.status.success(), || ended.stderr.clone());
        let text = fs::read_to_string(daemon.folder().join("all.folded"))?;
        let stacks = text_outputs::folded(&text)?;
        let frames = stacks.iter().flat_map(|stack| &stack.frames);
        let numbers: HashSet<u64> = frames.filter_map(|frame| number_of(frame)).collect();
        let mut tenths = [0; 10];
        for number in &numbers {
            let tenth = usize::try_from(number * 10 / made.max(1))?;
            tenths[tenth.min(9)] += 1;
        }
        let [.., late] = tenths;
        println!("{version}: {made} methods; named of each tenth {tenths:?}; losses {losses}");
        wrongs.unless(late >= 5, || {
            let unnamed: u64 = stacks
                .iter()
                .filter(|stack| stack.frames.iter().any(|frame| frame == "[jit]"))
                .map(|stack| stack.count)
                .sum();
            format!("{version}: {late} late; {unnamed} with unnamed code\n{status:#}\n{log}")
        });
    }
    let lost = losses["clr_records_lost"].as_u64().unwrap_or(0);
    wrongs.unless(lost == 0, || losses.to_string());
    wrongs.none();
    Ok(())
}

/// The number in the name of a method that the program has made.
pub fn number_of(frame: &str) -> Option<u64> {
    let (_, after) = frame.split_once("Made")?;
    let end = after.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(after.len());
    after.get(..end)?.parse().ok()
}

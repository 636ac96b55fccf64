//! The main process's side of the broker.
//!
//! Invariant: nothing here waits for the helper, and what is open is bounded.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use strata_sandbox::channel::{Channel, Wait};

use super::process::{STEADY, wait_after};
use super::{ARGUMENT, MOST_PROBES, Mapped, Operation, Outcome, REPLY_BYTES, Reply, Request};
use crate::kernel::perf_event::CpuEvent;
use crate::kernel::probes::{ProbeError, remove};

/// A helper that has ended is started again after this time, and twice as late each time after that.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// Replies that are taken at once.
const MOST_REPLIES: usize = 64;

/// The number of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestId(u64);

/// What a status shows of the helper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerState {
    /// Of the keeper, while it runs.
    pub pid: Option<u32>,
    /// Brokers that were started because the one before had ended.
    pub restarts: u64,
    /// Why it does nothing, or not everything.
    pub trouble: Option<String>,
}

struct Helper {
    /// The keeper.
    child: Child,
    channel: Channel,
    /// A broker has begun to serve.
    has_begun: bool,
    since: Instant,
}

/// The event of a CPU.
enum CpuRequest {
    Open,
    Done(io::Result<OwnedFd>),
}

/// See [`super`].
pub struct Broker {
    /// What probes run.
    program: Option<OwnedFd>,
    helper: Option<Helper>,
    /// Those that have ended and are not reaped.
    ended: Vec<Child>,
    next: u64,
    probes: Vec<RequestId>,
    /// By the event, which a later call asks for once more.
    cpus: HashMap<(u32, CpuEvent), (RequestId, CpuRequest)>,
    attached: VecDeque<(RequestId, Result<OwnedFd, ProbeError>)>,
    starts: u32,
    start_again: Instant,
    restarts: u64,
    trouble: Option<String>,
    /// The first broker had CAP_SYS_ADMIN.
    was_privileged: Option<bool>,
    /// Brokers have ended again and again: when the last one has not, if it goes on until then.
    steady_at: Option<Instant>,
}

/// So many brokers that ended soon, one after the other, are trouble.
const FAILING: u32 = 3;

impl Broker {
    /// Starts the helper, with the capabilities of the calling thread. The helper ends with that
    /// thread.
    pub fn start(program: Option<OwnedFd>) -> Self {
        let mut broker = Self::without_helper(program);
        broker.start_helper();
        broker
    }

    fn without_helper(program: Option<OwnedFd>) -> Self {
        Self {
            program,
            helper: None,
            ended: Vec::new(),
            next: 1,
            probes: Vec::new(),
            cpus: HashMap::new(),
            attached: VecDeque::new(),
            starts: 0,
            start_again: Instant::now(),
            restarts: 0,
            trouble: None,
            was_privileged: None,
            steady_at: None,
        }
    }

    fn start_helper(&mut self) {
        let wait = AGAIN_AFTER.saturating_mul(1 << self.starts.min(16)).min(LONGEST_WAIT);
        self.start_again = Instant::now() + wait;
        self.starts = self.starts.saturating_add(1);
        match Helper::start(self.program.as_ref()) {
            Ok(helper) => self.helper = Some(helper),
            Err(error) => {
                self.report(&format!("the helper process could not be started ({error})"));
            }
        }
    }

    fn report(&mut self, why: &str) {
        let lost = match self.program {
            Some(_) => "no events of .NET processes that start until it is there again",
            None => "no samples of CPUs that are switched on until it is there again",
        };
        let trouble = format!("{why}: {lost}");
        if self.trouble.as_ref() != Some(&trouble) {
            tracing::warn!("{trouble}");
        }
        self.trouble = Some(trouble);
    }

    pub fn state(&self) -> BrokerState {
        let pid = self.helper.as_ref().map(|helper| helper.child.id());
        BrokerState { pid, restarts: self.restarts, trouble: self.trouble.clone() }
    }

    /// Sends a request; `None` where there is no helper or no room.
    fn send(&mut self, operation: Operation) -> Option<RequestId> {
        let request = Request { id: self.next, operation };
        let helper = self.helper.as_ref()?;
        helper.channel.send(&request.encode(), &[], Wait::DontWait).ok()?;
        self.next += 1;
        Some(RequestId(request.id))
    }

    /// Asks for a probe; [`Self::attached`] has the result. `None`: it cannot be asked for now.
    pub fn attach(&mut self, mapped: Mapped) -> Option<RequestId> {
        if self.probes.len() >= MOST_PROBES {
            return None;
        }
        let id = self.send(Operation::Probe(mapped))?;
        self.probes.push(id);
        Some(id)
    }

    /// The next result of [`Self::attach`].
    pub fn attached(&mut self) -> Option<(RequestId, Result<OwnedFd, ProbeError>)> {
        self.attached.pop_front()
    }

    /// An event of a CPU. [`WouldBlock`](io::ErrorKind::WouldBlock): it was asked for, and is there
    /// at a later call.
    pub fn cpu_event(&mut self, cpu: u32, event: CpuEvent) -> io::Result<OwnedFd> {
        self.turn();
        let key = (cpu, event);
        match self.cpus.remove(&key) {
            Some((_, CpuRequest::Done(result))) => return result,
            Some(open) => {
                self.cpus.insert(key, open);
            }
            None => {
                let id = self
                    .send(Operation::Cpu(cpu, event))
                    .ok_or_else(|| io::Error::other("the helper process has ended"))?;
                self.cpus.insert(key, (id, CpuRequest::Open));
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Events of a CPU that have not been taken are of no use: it was switched off meanwhile.
    pub fn forget_cpu(&mut self, cpu: u32) {
        self.cpus.retain(|(of, _), _| *of != cpu);
    }

    /// Sampling stops: clocks that have not been taken may be of another frequency than the next ones.
    pub fn forget_clocks(&mut self) {
        self.cpus.retain(|(_, event), _| !matches!(event, CpuEvent::Clock { .. }));
    }

    /// Takes what has arrived.
    pub fn turn(&mut self) {
        if self.helper.is_none() && Instant::now() >= self.start_again {
            self.start_helper();
        }
        if self.steady_at.is_some_and(|steady| steady <= Instant::now()) {
            tracing::info!("the helper process goes on");
            self.steady_at = None;
            self.trouble = None;
        }
        self.ended.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        let mut buffer = [0; REPLY_BYTES];
        for _ in 0..MOST_REPLIES {
            let Some(helper) = &mut self.helper else { return };
            // Not by the socket alone: a process that attaches, held by a file, has it too.
            if !matches!(helper.child.try_wait(), Ok(None)) {
                return self.lose_helper();
            }
            let mut received = match helper.channel.receive(&mut buffer, true, Wait::DontWait) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.lose_helper(),
            };
            if received.length == 0 {
                return self.lose_helper();
            }
            let event = received.descriptors.pop();
            received.descriptors.into_iter().for_each(remove);
            match buffer.get(..received.length).and_then(Reply::decode) {
                Some(reply) => self.take(reply, event),
                None => return self.lose_helper(),
            }
        }
    }

    fn take(&mut self, reply: Reply, event: Option<OwnedFd>) {
        let id = RequestId(reply.id);
        if let Outcome::Begun { is_privileged, failed } = reply.outcome {
            return self.has_begun(is_privileged, failed);
        }
        let cpu = self.cpus.iter().find(|(_, (of, _))| *of == id).map(|(key, _)| *key);
        if let Some(key) = cpu {
            let result = match (reply.outcome, event) {
                (Outcome::Done, Some(event)) => Ok(event),
                (Outcome::Open(error), _) => Err(error),
                _ => Err(io::Error::other("the helper process failed")),
            };
            self.cpus.insert(key, (id, CpuRequest::Done(result)));
        } else if let Some(place) = self.probes.iter().position(|of| *of == id) {
            self.probes.swap_remove(place);
            let result = match (reply.outcome, event) {
                (Outcome::Done, Some(event)) => Ok(event),
                (Outcome::NoUprobes(error), _) => Err(ProbeError::NoUprobes(error)),
                (Outcome::Library(error), _) => Err(ProbeError::Library(error)),
                (Outcome::OtherCode, _) => Err(ProbeError::OtherCode),
                (Outcome::Open(error), _) => Err(ProbeError::Open(error)),
                (Outcome::Attach(error), _) => Err(ProbeError::Attach(error)),
                (Outcome::Late, _) => Err(ProbeError::Late),
                _ => Err(ProbeError::Ended),
            };
            self.attached.push_back((id, result));
        } else {
            // Of a request that was given up.
            event.into_iter().for_each(remove);
        }
    }

    /// `failed`: see [`Outcome::Begun`].
    fn has_begun(&mut self, is_privileged: bool, failed: u32) {
        let Some(helper) = &mut self.helper else { return };
        let is_another = std::mem::replace(&mut helper.has_begun, true);
        if is_another {
            self.restarts += 1;
            if failed < FAILING {
                tracing::warn!("the helper process had ended, and was started again");
            }
            self.forget_open();
        }
        let was_privileged = *self.was_privileged.get_or_insert(is_privileged);
        if was_privileged && !is_privileged {
            self.report(
                "the helper process has ended, and strata has given up the CAP_SYS_ADMIN that \
                 another one needs: restart strata",
            );
            return;
        }
        if failed >= FAILING {
            return self.report_failing(failed);
        }
        self.steady_at = None;
        if self.trouble.take().is_some() {
            tracing::info!("the helper process is there again");
        }
    }

    /// Brokers end again and again: the log has it once.
    fn report_failing(&mut self, failed: u32) {
        let trouble = "the helper process ends again and again, and is started again ever later; \
                       what is asked of it meanwhile is lost";
        // By then another one would have begun, had this one died soon.
        let steady = STEADY + wait_after(failed.saturating_add(1)) + Duration::from_secs(1);
        if self.steady_at.replace(Instant::now() + steady).is_none() {
            tracing::warn!("{trouble}");
        }
        self.trouble = Some(trouble.to_owned());
    }

    /// The helper has ended, or does not keep to the protocol.
    fn lose_helper(&mut self) {
        let Some(Helper { mut child, since, .. }) = self.helper.take() else { return };
        let _ = child.kill();
        self.ended.push(child);
        self.restarts += 1;
        self.steady_at = None;
        if since.elapsed() >= STEADY {
            self.starts = 0;
        }
        self.report("the helper process has ended");
        self.forget_open();
    }

    /// What was asked for has no answer any more.
    fn forget_open(&mut self) {
        let lost = self.probes.drain(..).map(|id| (id, Err(ProbeError::Ended)));
        self.attached.extend(lost);
        self.cpus.retain(|_, (_, request)| matches!(request, CpuRequest::Done(_)));
    }
}

impl Helper {
    fn start(program: Option<&OwnedFd>) -> io::Result<Self> {
        let (ours, theirs) = Channel::pair()?;
        let program = match program {
            Some(program) => Stdio::from(program.try_clone()?),
            None => Stdio::null(),
        };
        // A process group of its own: a Ctrl-C on the terminal is for strata, which ends it.
        let child = Command::new("/proc/self/exe")
            .arg(ARGUMENT)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs.into_socket()))
            .stdout(program)
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Self { child, channel: ours, has_begun: false, since: Instant::now() })
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(Helper { mut child, .. }) = self.helper.take() {
            let _ = child.kill();
            self.ended.push(child);
        }
        for child in &mut self.ended {
            let _ = child.try_wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::kernel::broker::process;

    /// A broker whose helper is a thread of this process, beside a process that only waits.
    fn broker() -> Broker {
        let (ours, theirs) = Channel::pair().expect("a pair of sockets");
        std::thread::spawn(move || {
            let program = std::fs::File::open("/dev/null").expect("it is there");
            // What it is still asked when the helper has ended fails.
            let _ = process::serve(&theirs, program.as_fd(), true, 0);
        });
        let child = Command::new("sleep").arg("1000").spawn().expect("it is installed");
        let mut broker = Broker::without_helper(None);
        let since = Instant::now();
        broker.helper = Some(Helper { child, channel: ours, has_begun: false, since });
        broker.start_again = Instant::now() + LONGEST_WAIT;
        broker
    }

    fn wait_for<T>(mut of: impl FnMut() -> Option<T>) -> T {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(found) = of() {
                return found;
            }
            assert!(Instant::now() < end, "it takes too long");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn opened(broker: &mut Broker, cpu: u32) -> io::Result<OwnedFd> {
        let event = CpuEvent::Clock { frequency: 97 };
        wait_for(|| match broker.cpu_event(cpu, event) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            result => Some(result),
        })
    }

    /// Needs root, as strata does.
    #[test]
    fn an_event_of_a_cpu_is_there_at_a_later_call() {
        let mut broker = broker();
        let first = broker.cpu_event(0, CpuEvent::Clock { frequency: 97 });
        assert_eq!(first.expect_err("not yet").kind(), io::ErrorKind::WouldBlock);
        let [one, other] = [(); 2].map(|()| opened(&mut broker, 0).expect("the CPU is there"));
        drop((one, other));
        // A CPU may be switched on later: it is asked again each time.
        for _ in 0..2 {
            assert!(opened(&mut broker, 1 << 20).is_err());
        }
        assert!(broker.cpus.is_empty() && broker.state().trouble.is_none());

        // It is switched off and on again before its event is taken.
        assert!(broker.cpu_event(0, CpuEvent::Clock { frequency: 97 }).is_err());
        let is_done = |broker: &Broker| {
            broker.cpus.values().any(|(_, request)| matches!(request, CpuRequest::Done(_)))
        };
        wait_for(|| {
            broker.turn();
            is_done(&broker).then_some(())
        });
        broker.forget_cpu(1);
        assert!(is_done(&broker));
        broker.forget_cpu(0);
        assert!(broker.cpus.is_empty());
    }

    #[test]
    fn what_was_asked_of_a_helper_that_has_ended_fails_and_may_pass() {
        let mut broker = broker();
        let gone = Mapped { pid: std::process::id(), start: 4096, end: 8192, offset: 0 };
        let id = broker.attach(gone).expect("there is room");
        let (answered, result) = wait_for(|| {
            broker.turn();
            broker.attached()
        });
        assert!(answered == id && matches!(result, Err(ProbeError::Library(_))));

        let asked = broker.attach(gone).expect("there is room");
        let helper = broker.helper.as_mut().expect("it is there");
        helper.child.kill().expect("it runs");
        let (answered, result) = wait_for(|| {
            broker.turn();
            broker.attached()
        });
        // Its answer may have come before its end was seen.
        assert!(answered == asked && result.is_err());
        wait_for(|| {
            broker.turn();
            broker.state().trouble
        });
        assert!(broker.attach(gone).is_none() && broker.state().pid.is_none());
        assert!(broker.probes.is_empty());
    }

    #[test]
    fn no_more_is_asked_for_than_there_is_room() {
        let mut broker = broker();
        broker.probes = vec![RequestId(0); MOST_PROBES];
        let gone = Mapped { pid: std::process::id(), start: 4096, end: 8192, offset: 0 };
        assert!(broker.attach(gone).is_none());
    }

    #[test]
    fn a_broker_that_was_started_again_has_forgotten_what_was_open() {
        let mut broker = broker();
        wait_for(|| {
            broker.turn();
            broker.helper.as_ref()?.has_begun.then_some(())
        });
        broker.probes.push(RequestId(77));
        let begins = |broker: &mut Broker, is_privileged, failed| {
            broker.take(Reply { id: 0, outcome: Outcome::Begun { is_privileged, failed } }, None);
        };
        begins(&mut broker, true, 1);
        let (id, result) = broker.attached().expect("it is answered for");
        assert!(id == RequestId(77) && result.is_err_and(|error| error.may_pass()));
        assert_eq!((broker.state().restarts, broker.state().trouble), (1, None));
        // Others follow, until one of them goes on.
        begins(&mut broker, true, 2);
        assert_eq!(broker.state().trouble, None);
        for failed in FAILING..FAILING + 3 {
            begins(&mut broker, true, failed);
            broker.turn();
            let trouble = broker.state().trouble.expect("they end again and again");
            assert!(trouble.contains("again and again"), "{trouble}");
        }
        assert_eq!(broker.state().restarts, 5);
        broker.steady_at = Some(Instant::now());
        broker.turn();
        assert_eq!(broker.state().trouble, None);
        begins(&mut broker, false, 1);
        let trouble = broker.state().trouble.expect("it cannot attach");
        assert!(trouble.contains("restart strata"), "{trouble}");
    }
}

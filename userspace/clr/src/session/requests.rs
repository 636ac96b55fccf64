//! Requests to a bridge: waiting, sent, and answered or not.
//!
//! The bridge has 256 places for requests and serves them in order, so further requests wait here.
//! The answers are records of the log; only requests without any answer are reported here.

use std::collections::{HashSet, VecDeque};
use std::io;

use strata_bridge_protocol::control::{Outcome, request};
use strata_bridge_protocol::layout::REQUEST_SLOTS;
use strata_bridge_protocol::owning::Owner;

/// More requests do not wait.
pub const MAX_WAITING: usize = 1 << 16;

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Question {
    /// Which method this address belongs to: a `Method` with `asked_ip`, or `NotFound`.
    Address(u64),
    /// Which IL the code of this function at this start came from: an `IlMap`.
    IlMap { function: u64, rejit: u64, start: u64 },
    /// An AppDomain, once more: an `AppDomain`.
    AppDomain(u64),
}

impl Question {
    fn encoded(self) -> (u32, u64, u64) {
        match self {
            Self::Address(ip) => (request::RESOLVE_IP, ip, 0),
            Self::IlMap { function, start, .. } => (request::IL_MAP, start, function),
            Self::AppDomain(id) => (request::APP_DOMAIN, id, 0),
        }
    }
}

/// Why a request has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unanswered {
    /// The runtime refused, or the bridge does not support such requests.
    Refused,
    /// There was no room for the answer.
    Lost,
    /// The bridge detached before it answered.
    Gone,
}

#[derive(Debug, Default)]
pub struct Requests {
    waiting: VecDeque<Question>,
    asked: VecDeque<(u64, Question)>,
    /// Requests that wait or are sent, so that each is sent once.
    open: HashSet<Question>,
    /// Requests refused because too many waited.
    dropped: u64,
    /// Of these, those that have not been reported as unanswered yet.
    without_room: Vec<Question>,
}

impl Requests {
    /// Queues a request, unless the same one is pending.
    pub fn ask(&mut self, question: Question) {
        if self.open.contains(&question) {
            return;
        }
        if self.open.len() >= MAX_WAITING {
            self.dropped += 1;
            if self.without_room.len() < MAX_WAITING {
                self.without_room.push(question);
            }
            return;
        }
        self.open.insert(question);
        self.waiting.push_back(question);
    }

    /// How many have not been answered.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Collects the outcomes of requests, and sends as many as there is room for.
    pub fn advance(&mut self, owner: &mut Owner) -> io::Result<Vec<(Question, Unanswered)>> {
        let without_room = self.without_room.drain(..).map(|question| (question, Unanswered::Lost));
        let mut unanswered: Vec<_> = without_room.collect();
        if !self.asked.is_empty() {
            let outcomes = owner.outcomes()?;
            while let Some(&(sequence, question)) = self.asked.front() {
                let Some(outcome) = outcomes.of(sequence) else { break };
                self.asked.pop_front();
                self.open.remove(&question);
                match outcome {
                    Outcome::Answered => {}
                    Outcome::Unknown | Outcome::Failed => {
                        unanswered.push((question, Unanswered::Refused));
                    }
                    Outcome::Lost => unanswered.push((question, Unanswered::Lost)),
                }
            }
        }
        if !self.waiting.is_empty() {
            let first = self.waiting.iter().take(REQUEST_SLOTS);
            let wanted: Vec<_> = first.map(|question| question.encoded()).collect();
            let sequences = owner.request(&wanted)?;
            if !sequences.is_empty() {
                let sent = self.waiting.drain(..sequences.len());
                self.asked.extend(sequences.into_iter().zip(sent));
                owner.ring()?;
            }
        }
        Ok(unanswered)
    }

    /// There will be no answer any more.
    pub fn give_up(&mut self) -> Vec<(Question, Unanswered)> {
        let asked = self.asked.drain(..).map(|(_, question)| question);
        let open = asked.chain(self.waiting.drain(..)).chain(self.without_room.drain(..));
        let open = open.map(|question| (question, Unanswered::Gone)).collect();
        self.open.clear();
        open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_waits_once_and_not_without_end() {
        let mut requests = Requests::default();
        for _ in 0..3 {
            requests.ask(Question::Address(7));
        }
        assert_eq!(requests.open(), 1);
        for ip in 0..2 * MAX_WAITING as u64 {
            requests.ask(Question::Address(ip));
        }
        assert_eq!(requests.open(), MAX_WAITING);
        assert_eq!(requests.dropped(), MAX_WAITING as u64);
        // Those that found no room have no answer either.
        assert_eq!(requests.give_up().len(), 2 * MAX_WAITING);
        assert_eq!(requests.open(), 0);
    }
}

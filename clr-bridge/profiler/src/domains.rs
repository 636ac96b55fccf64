//! AppDomains: an identity each, and the application's own description of itself.
//!
//! Both outlive a detach, unlike everything else: a tracer sets its service's name once, and a
//! process that is attached again is the same process. The list never grows beyond the AppDomains.

use std::sync::{Mutex, MutexGuard, PoisonError};

use strata_bridge_protocol::record::{AppDomain, AppDomainEnd};

use crate::scratch::{self, Scratch};
use crate::session::Session;

/// The arguments of `SetApplicationInfoForAppDomain`.
#[derive(Default)]
pub struct Application {
    /// The UUID, if it was one.
    pub runtime_id: Option<[u8; 16]>,
    pub service: String,
    pub environment: String,
    pub version: String,
}

struct Domain {
    id: usize,
    runtime_id: [u8; 16],
    name: String,
    application: Application,
    /// The session in which its present state was reported.
    reported: u64,
}

/// AppDomains of a process: .NET has one, besides the runtime's own.
const MOST_DOMAINS: usize = 64;

static DOMAINS: Mutex<Vec<Domain>> = Mutex::new(Vec::new());
/// Set by a thread whose AppDomain could not be queried: no profiler was attached.
static UNBOUND: Mutex<Option<Application>> = Mutex::new(None);

fn domains() -> MutexGuard<'static, Vec<Domain>> {
    DOMAINS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes sure that an AppDomain is reported, with its present name.
pub fn learn(session: &Session, id: usize) {
    if id == 0 || !session.is_reporting() {
        return;
    }
    let Some(mut scratch) = scratch::take(session) else { return };
    let Scratch { units, text: name, .. } = scratch.get();
    // A thread that is being created may not query it: the name stays as it was.
    let length = session.info().app_domain_name(id, units);
    name.push_units(units.get(..length.unwrap_or(0)).unwrap_or_default());
    let mut domains = domains();
    let Some(domain) = entry(&mut domains, id) else { return };
    if length.is_some() && domain.name != name.as_str() {
        set(&mut domain.name, name.as_str());
        domain.reported = 0;
    }
    if let Some(said) = UNBOUND.lock().unwrap_or_else(PoisonError::into_inner).take() {
        apply(domain, said);
    }
    if domain.reported != session.number() {
        report(session, domain);
    }
}

/// Reports an AppDomain again, and returns whether the record was written. `None` when the id is
/// unknown: the runtime would dereference any number.
pub fn report_again(session: &Session, id: usize) -> Option<bool> {
    let mut domains = domains();
    let domain = domains.iter_mut().find(|domain| domain.id == id)?;
    domain.reported = 0;
    report(session, domain);
    Some(domain.reported != 0)
}

/// Reads the names again: the runtime renames its AppDomain while it starts.
pub fn look_again(session: &Session) {
    let mut ids = [0usize; MOST_DOMAINS];
    for (id, domain) in ids.iter_mut().zip(domains().iter()) {
        *id = domain.id;
    }
    for id in ids {
        learn(session, id);
    }
}

/// Binds the application's description to the AppDomain of the calling thread.
pub fn bind(session: Option<&Session>, application: Application) {
    let of_thread = session.and_then(|session| {
        let thread = session.info().current_thread()?;
        session.info().thread_app_domain(thread).filter(|id| *id != 0)
    });
    let (Some(session), Some(id)) = (session, of_thread) else {
        *UNBOUND.lock().unwrap_or_else(PoisonError::into_inner) = Some(application);
        return;
    };
    let mut domains = domains();
    if let Some(domain) = entry(&mut domains, id) {
        apply(domain, application);
    }
    drop(domains);
    learn(session, id);
}

pub fn report_end(session: &Session, id: usize) {
    domains().retain(|domain| domain.id != id);
    session.write(&AppDomainEnd { id: id as u64 });
}

fn apply(domain: &mut Domain, application: Application) {
    if let Some(runtime_id) = application.runtime_id {
        domain.runtime_id = runtime_id;
    }
    domain.application = application;
    domain.reported = 0;
}

fn report(session: &Session, domain: &mut Domain) {
    let reported = session.write(&AppDomain {
        id: domain.id as u64,
        runtime_id: domain.runtime_id,
        name: &domain.name,
        service: &domain.application.service,
        environment: &domain.application.environment,
        version: &domain.application.version,
    });
    if reported {
        domain.reported = session.number();
    }
}

fn entry(domains: &mut Vec<Domain>, id: usize) -> Option<&mut Domain> {
    match domains.iter().position(|domain| domain.id == id) {
        Some(position) => domains.get_mut(position),
        None => {
            if domains.len() >= MOST_DOMAINS || domains.try_reserve(1).is_err() {
                return None;
            }
            domains.push(Domain {
                id,
                runtime_id: random_uuid(),
                name: String::new(),
                application: Application::default(),
                reported: 0,
            });
            domains.last_mut()
        }
    }
}

/// A copy, or the old value without memory.
pub fn set(to: &mut String, text: &str) {
    to.clear();
    if to.try_reserve(text.len()).is_ok() {
        to.push_str(text);
    }
}

/// A random UUID, version 4 (RFC 9562).
fn random_uuid() -> [u8; 16] {
    let mut bytes = [0u8; 16];
    // SAFETY: the buffer has that size. The call by number works with every libc.
    unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0) };
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

/// Reads a UUID in its text form, with or without hyphens.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let mut bytes = [0u8; 16];
    let mut digits = text.chars().filter(|character| *character != '-').map(|c| c.to_digit(16));
    for byte in &mut bytes {
        let (high, low) = (digits.next()??, digits.next()??);
        *byte = (high << 4 | low) as u8;
    }
    digits.next().is_none().then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_read_in_both_forms() {
        let bytes = *b"\x12\x34\x56\x78\x9a\xbc\xde\xf0\x12\x34\x56\x78\x9a\xbc\xde\xf0";
        assert_eq!(parse_uuid("12345678-9abc-def0-1234-56789ABCDEF0"), Some(bytes));
        assert_eq!(parse_uuid("123456789abcdef0123456789abcdef0"), Some(bytes));
    }

    #[test]
    fn what_is_no_uuid_is_refused() {
        for text in ["", "service", "12345678-9abc-def0-1234-56789abcdef", "é".repeat(32).as_str()]
        {
            assert_eq!(parse_uuid(text), None, "{text}");
        }
        assert_eq!(parse_uuid("12345678-9abc-def0-1234-56789abcdef01"), None);
    }

    #[test]
    fn a_made_up_uuid_is_of_version_4() {
        let (first, second) = (random_uuid(), random_uuid());
        assert_ne!(first, second);
        assert_eq!((first[6] >> 4, first[8] >> 6), (4, 2));
    }
}

//! The bridge's use of the shared memory: writes and counts records; the protocol's writer counts
//! losses.

use strata_bridge_protocol::contexts::Context;
use strata_bridge_protocol::record::{Encode, kind};
use strata_bridge_protocol::shared_file::{CreateError, monotonic_time};
use strata_bridge_protocol::status::{Count, Loss, State};
use strata_bridge_protocol::writer::Writer;

pub struct Shared {
    writer: Writer,
}

impl Shared {
    pub fn create() -> Result<Shared, CreateError> {
        Ok(Shared { writer: Writer::create()? })
    }

    pub fn writer(&self) -> &Writer {
        &self.writer
    }

    /// Appends a record. `false`: it was lost, and counted as such.
    pub fn append<E: Encode>(&self, record: &E) -> bool {
        let written = self.writer.append(monotonic_time(), record).is_ok();
        let count = match E::KIND {
            kind::METHOD => Count::Methods,
            kind::METHOD_UNLOAD => Count::MethodUnloads,
            kind::MODULE => Count::Modules,
            kind::TYPE => Count::Types,
            kind::APP_DOMAIN => Count::AppDomains,
            kind::THREAD => Count::Threads,
            _ => return written,
        };
        if written {
            self.count(count, 1);
        }
        written
    }

    pub fn count(&self, count: Count, by: u64) {
        if !self.writer.is_forked() {
            self.writer.status().count(count, by);
        }
    }

    pub fn lost(&self, loss: Loss) {
        if !self.writer.is_forked() {
            self.writer.status().lost(loss, 1);
        }
    }

    pub fn set_state(&self, state: State) {
        if !self.writer.is_forked() {
            self.writer.status().set_state(state);
        }
    }

    /// Gives a thread its slot in the context table, with its AppDomain.
    pub fn enter_thread(&self, tid: u32, app_domain: usize) {
        if let Ok(slot) = self.writer.register_thread(tid) {
            let mut context = self.writer.context(slot).unwrap_or_default();
            if context.app_domain != app_domain as u64 {
                context = Context { app_domain: app_domain as u64, ..context };
                // A failure is counted, and the thread has no AppDomain then.
                let _ = self.writer.set_context(slot, &context);
            }
        }
    }
}

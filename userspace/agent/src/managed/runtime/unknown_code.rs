//! Addresses in no method: they are asked about, and by the runtime's answer their code is read, which may be
//! a stub of the runtime's own.
//!
//! Invariant: an address of which nothing is found is known too, as code without a name: it is not asked about
//! at every sample.

use std::time::Instant;

use super::Runtime;
use crate::managed::stubs::{self, Stub};

impl Runtime {
    /// The runtime's answer about an address.
    pub(super) fn is_in_no_method(&mut self, address: u64) {
        if self.addresses.is_in_no_method(address) {
            self.unknown_stubs.push(address);
        }
    }

    /// Notes that an address is requested; false when it was requested before.
    pub fn ask(&mut self, address: u64, is_caller: bool) -> bool {
        self.addresses.ask(address, is_caller, Instant::now())
    }

    /// There is no answer about an address. It may be asked about again; when that was refused some times, its
    /// code is read.
    pub fn is_unanswered(&mut self, address: u64, is_refused: bool) {
        if self.addresses.is_unanswered(address, is_refused, Instant::now()) {
            self.unknown_stubs.push(address);
        }
    }

    /// Takes the addresses in no method, by the runtime's answer, whose code is to be read.
    pub fn take_unknown_stubs(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.unknown_stubs)
    }

    /// Keeps the stub that was found at an address.
    pub fn take_stub(&mut self, address: u64, stub: Option<Stub>) {
        // .NET Core 3.1 does not mark its memory: another compiler's code may lie in such, too.
        let nameless = || self.code.is_beside_known(address).then_some(stubs::NAMELESS);
        let name = stub.map(|stub| stub.name).or_else(nameless);
        let is_caller = self.addresses.add_stub(address, name);
        if !self.code.is_gone(address) {
            self.code.insert_stub(address, is_caller);
        }
        if let Some(stub) = stub
            && let Some(rules) = stub.rules()
        {
            self.code.insert_known_stub(address - stub.offset, stub.size, &rules);
        }
    }

    /// The name of the runtime's own code at an address; `Some(None)` if it has none.
    pub fn stub_at(&self, address: u64) -> Option<Option<&'static str>> {
        self.addresses.stub_at(address)
    }

    /// Whether the answer about an address is pending.
    pub fn is_waiting_for(&self, address: u64) -> bool {
        self.addresses.is_waiting_for(address)
    }
}

#[cfg(test)]
mod tests {
    use strata_bridge_protocol::record::NotFound;

    use super::*;

    #[test]
    fn stubs_that_are_met_and_gone_do_not_fill_the_map() {
        let mut runtime = Runtime::default();
        let most = 8 << 20;
        for n in 0..100_000u64 {
            let address = 0x10_0000 + n * 0x1000;
            assert!(runtime.ask(address, false));
            runtime.take_record(NotFound { ip: address }, most);
            for stub in runtime.take_unknown_stubs() {
                runtime.take_stub(stub, None);
            }
            assert!(runtime.code.knows(address));
            if n % 3000 == 0 {
                runtime.forget_described(runtime.code.eras.now());
            }
        }
        assert_eq!((runtime.refused, runtime.code.refused), (0, 0));
        assert!(runtime.bytes() < 5 << 20, "{}", runtime.bytes());
    }
}

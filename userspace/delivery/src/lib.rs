//! From "there is a batch" to "a server has it".
//!
//! [`Delivery`] runs a task for each [`SinkPlan`]. [`Delivery::give`] hands it a batch and returns
//! at once; the task puts the batch into its [`spool`], sends it, and removes it when the server
//! has answered.
//!
//! - Order: batches are begun in the order of their time, so what piled up goes before what is
//!   new. Several requests at once may be answered in another order, and every fourth request to a
//!   server that fails is made with the second batch, in case the first is what it fails on.
//! - A server that is down is asked with one request at a time, after waits that double and are
//!   random within bounds. When it is back, the number of requests at once grows from one.
//! - The same batch arrives twice only if the answer to the first was lost, with the network or
//!   with this process. It has the same id both times.
//! - What is older than a sink's age is dropped and never sent. Everything that will not arrive is
//!   counted by cause in [`SinkHealth`].
//! - A disk that is full or fails is counted and tried again; batches are sent from memory then. One
//!   that hangs holds up its own sink, and what is given to that is bounded and counted.
//!
//! Modules: `delivery` is all sinks, `actor` is one; `pace` and `queue` decide what is sent when,
//! without knowing of clocks, disks or servers; `intake`, `spool` and `login` are where batches
//! come in, lie, and go out.

mod actor;
mod clock;
mod delivery;
mod health;
mod intake;
mod login;
mod pace;
mod plan;
mod queue;
pub mod spool;

pub use clock::Clock;
pub use delivery::{Delivery, GiveError, PlanError};
pub use health::{Count, Drops, SinkHealth, State, Trouble};
pub use pace::Waits;
pub use plan::{CredentialSource, SinkPlan};

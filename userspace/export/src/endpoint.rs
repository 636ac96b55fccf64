//! A backend and the connection to it.
//!
//! Encoding and sending are separate: the bytes may stay in a spool for hours in between.

use crate::backends::{Backend, EncoderState};
use crate::batch::{Batch, Encoded, Outgoing};
use crate::http::{Client, EndpointSettings, Outcome, SetupError};

/// A server that profiles are sent to.
#[derive(Debug)]
pub struct Endpoint {
    backend: Backend,
    client: Client,
}

impl Endpoint {
    /// # Errors
    /// If a header or certificate of the destination is invalid.
    pub fn new(backend: Backend, destination: &EndpointSettings) -> Result<Self, SetupError> {
        let mut destination = destination.clone();
        if let Some(path) = backend.own_path() {
            destination.address = destination.address.without(path);
        }
        let client = Client::new(&destination, backend.is_grpc())?;
        Ok(Self { backend, client })
    }

    /// See [`Backend::encode`]; these profiles are the only ones.
    #[must_use]
    pub fn encode(&self, profiles: &[Outgoing]) -> Encoded {
        self.backend.encode(profiles, &mut EncoderState::default())
    }

    /// Sends the batch once, without a retry.
    pub async fn send(&self, batch: &Batch) -> Outcome {
        self.client.send(batch).await
    }
}

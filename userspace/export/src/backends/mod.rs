//! A backend of an exporter: its encoding of profiles.

use std::cell::RefCell;
use std::time::Duration;

use crate::batch::{Batch, Encoded, Outgoing, Protocol};
use crate::label_values::LabelValues;

pub mod datadog;
pub mod otlp;
pub mod pyroscope;

/// A kind of server, and its settings.
#[derive(Clone, Debug, PartialEq)]
pub enum Backend {
    Pyroscope(pyroscope::Settings),
    Datadog(datadog::Settings),
    Otlp(otlp::Settings),
}

/// State of one exporter that its requests share.
#[derive(Debug, Default)]
pub struct EncoderState {
    pub moments: pyroscope::Moments,
    /// Of labels of samples.
    pub label_values: RefCell<LabelValues>,
}

impl EncoderState {
    /// With at most so many values of a label.
    #[must_use]
    pub fn new(most_values: usize) -> Self {
        let label_values = RefCell::new(LabelValues::new(most_values));
        Self { label_values, ..Self::default() }
    }

    pub fn set_most_values(&mut self, most: usize) {
        self.label_values.get_mut().set_most(most);
    }
}

impl Backend {
    /// The requests that send these profiles, given the state left by earlier ones. Pure: no I/O,
    /// no clock.
    #[must_use]
    pub fn encode(&self, profiles: &[Outgoing], state: &mut EncoderState) -> Encoded {
        match self {
            Self::Pyroscope(settings) => pyroscope::encode(settings, profiles, state),
            Self::Datadog(settings) => datadog::encode(settings, profiles, state),
            Self::Otlp(settings) => otlp::encode(settings, profiles, state),
        }
    }

    /// Whether a batch is a request to such a server: a spool may have batches from before its exporter was
    /// configured for another kind, API or protocol.
    pub(crate) fn makes(&self, batch: &Batch) -> bool {
        let (protocol, path) = match self {
            Self::Pyroscope(settings) => (Protocol::Plain, pyroscope::path(settings)),
            Self::Datadog(_) => (Protocol::Plain, datadog::PATH),
            Self::Otlp(settings) => otlp::route(settings.transport),
        };
        batch.protocol == protocol && batch.path.split('?').next() == Some(path)
    }

    /// The least time between the beginnings of two requests, where a server counts their bytes.
    pub(crate) fn spacing(&self, concurrency: usize) -> Duration {
        match self {
            Self::Pyroscope(settings) => pyroscope::spacing(settings, concurrency),
            Self::Otlp(_) => pyroscope::time_of(2 * pyroscope::REQUEST, concurrency),
            Self::Datadog(_) => Duration::ZERO,
        }
    }

    /// The path of requests, which an address may contain already: OpenTelemetry's endpoint of one
    /// signal is the whole URL.
    pub(crate) fn own_path(&self) -> Option<&'static str> {
        match self {
            Self::Otlp(settings) if settings.transport == otlp::Transport::Http => {
                Some(otlp::HTTP_PATH)
            }
            _ => None,
        }
    }

    pub(crate) fn is_grpc(&self) -> bool {
        matches!(self, Self::Otlp(settings) if settings.transport == otlp::Transport::Grpc)
    }
}

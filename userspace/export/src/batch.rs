//! One request, as bytes: encoded once, stored until delivered, sent as often as needed.
//!
//! Invariant: a batch has no credential, tenant or address in it. The exporter adds those when it
//! sends, so a stolen spool reveals none, and stored batches follow a new setting.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;

use prost::Message;
use strata_profile::pprof::{self, Gzip};
use strata_profile::{Profile, WriteError};
use uuid::Uuid;

use crate::limits::Cuts;
use crate::origin::Origin;

/// A finished profile and its origin.
#[derive(Clone, Debug)]
pub struct Outgoing {
    pub profile: Arc<Profile>,
    pub origin: Arc<Origin>,
}

/// How the answer to a batch is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The status is sufficient.
    Plain,
    /// A delivery may be partial.
    OtlpHttp,
    /// The status is in the trailers.
    OtlpGrpc,
}

/// The contents of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The same each time the batch is sent, so that a server can detect duplicates.
    pub id: Uuid,
    pub protocol: Protocol,
    /// Below the exporter's address, with its query.
    pub path: String,
    pub content_type: String,
    /// Besides those of the protocol: they describe the profiles, and never hold a credential.
    pub headers: Vec<(&'static str, String)>,
    pub gzipped: bool,
    /// How many profiles are in it.
    pub profiles: u32,
    /// When the oldest of them began, in nanoseconds since 1970.
    pub oldest: i64,
    pub body: Bytes,
}

/// The result of encoding a list of profiles.
#[derive(Debug, Default)]
pub struct Encoded {
    pub batches: Vec<Batch>,
    pub cuts: Cuts,
}

#[derive(Debug, thiserror::Error)]
#[error("these bytes are no batch: {0}")]
pub struct NotABatch(&'static str);

/// A stored batch. Numbers of fields never change their meaning.
#[derive(Clone, PartialEq, Eq, Message)]
struct Stored {
    #[prost(bytes = "vec", tag = "1")]
    id: Vec<u8>,
    #[prost(uint32, tag = "2")]
    protocol: u32,
    #[prost(string, tag = "3")]
    path: String,
    #[prost(string, tag = "4")]
    content_type: String,
    #[prost(bool, tag = "5")]
    gzipped: bool,
    #[prost(uint32, tag = "6")]
    profiles: u32,
    #[prost(int64, tag = "7")]
    oldest: i64,
    #[prost(bytes = "bytes", tag = "8")]
    body: Bytes,
    #[prost(message, repeated, tag = "9")]
    headers: Vec<Header>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Header {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// The headers that a batch may have, so that a forged spool file cannot add others.
const HEADERS: [&str; 4] =
    ["datadog-container-id", "datadog-entity-id", "dd-evp-origin", "dd-evp-origin-version"];

impl Batch {
    /// The batch as bytes that [`Self::from_bytes`] reads.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let protocol = match self.protocol {
            Protocol::Plain => 1,
            Protocol::OtlpHttp => 2,
            Protocol::OtlpGrpc => 3,
        };
        let stored = Stored {
            id: self.id.as_bytes().to_vec(),
            protocol,
            path: self.path.clone(),
            content_type: self.content_type.clone(),
            gzipped: self.gzipped,
            profiles: self.profiles,
            oldest: self.oldest,
            body: self.body.clone(),
            headers: self
                .headers
                .iter()
                .map(|(name, value)| Header { name: (*name).to_owned(), value: value.clone() })
                .collect(),
        };
        stored.encode_to_vec()
    }

    /// # Errors
    /// If the bytes are not those of a batch.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, NotABatch> {
        let stored = Stored::decode(bytes).map_err(|_| NotABatch("they cannot be read"))?;
        let protocol = match stored.protocol {
            1 => Protocol::Plain,
            2 => Protocol::OtlpHttp,
            3 => Protocol::OtlpGrpc,
            _ => return Err(NotABatch("of an unknown protocol")),
        };
        if !stored.path.starts_with('/') {
            return Err(NotABatch("its path is none"));
        }
        Ok(Self {
            id: Uuid::from_slice(&stored.id).map_err(|_| NotABatch("it has no id"))?,
            protocol,
            path: stored.path,
            content_type: stored.content_type,
            headers: stored
                .headers
                .into_iter()
                .filter_map(|header| {
                    let name = HEADERS.into_iter().find(|name| *name == header.name)?;
                    Some((name, header.value))
                })
                .collect(),
            gzipped: stored.gzipped,
            profiles: stored.profiles,
            oldest: stored.oldest,
            body: stored.body,
        })
    }
}

/// The profile as gzipped pprof; `None`, counted, if it could not be written.
pub(crate) fn gzipped_pprof(profile: &Profile, cuts: &mut Cuts) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    counted(pprof::encode(profile, &mut bytes), cuts)?;
    Some(bytes)
}

pub(crate) fn gzipped(bytes: &[u8], cuts: &mut Cuts) -> Option<Vec<u8>> {
    let mut gzip = Gzip::new(Vec::new());
    let written = gzip.write_all(bytes).and_then(|()| gzip.finish());
    counted(written.map_err(WriteError::from), cuts)
}

fn counted<T>(written: Result<T, WriteError>, cuts: &mut Cuts) -> Option<T> {
    // Writing into memory fails only for what the model cannot express.
    if written.is_err() {
        cuts.failed_profiles = cuts.failed_profiles.saturating_add(1);
    }
    written.ok()
}

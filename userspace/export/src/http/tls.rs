//! The certificate authorities that a connection trusts.
//!
//! The system's certificates (`SSL_CERT_FILE` and `SSL_CERT_DIR` apply), or only those of the
//! configured file.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("the file of authorities has no certificate in PEM (-----BEGIN CERTIFICATE-----)")]
    NoCertificate,
    #[error("a certificate of the file of authorities cannot be read: {0}")]
    BadCertificate(String),
    #[error(
        "no certificate of an authority was found on this system: install ca-certificates, set \
         SSL_CERT_FILE, or name a file of authorities"
    )]
    NoSystemCertificates,
    #[error("TLS could not be set up: {0}")]
    Setup(String),
}

/// `is_used` is whether there will be any TLS at all: without, nothing is loaded.
pub(crate) fn configuration(
    is_used: bool,
    authorities: Option<&[u8]>,
    http2: bool,
) -> Result<ClientConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    match authorities {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let bad = |error: String| TlsError::BadCertificate(error);
                let certificate = certificate.map_err(|error| bad(error.to_string()))?;
                roots.add(certificate).map_err(|error| bad(error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(TlsError::NoCertificate);
            }
        }
        None if is_used => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                return Err(TlsError::NoSystemCertificates);
            }
        }
        None => {}
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Setup(error.to_string()))?;
    let mut configuration = builder.with_root_certificates(roots).with_no_client_auth();
    let protocol: &[u8] = if http2 { b"h2" } else { b"http/1.1" };
    configuration.alpn_protocols = vec![protocol.to_vec()];
    Ok(configuration)
}

//! A server's address: a URL, or a Unix socket.

use std::fmt;
use std::path::PathBuf;

use reqwest::Url;

/// An address without secrets: it may be shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// `http` or `https`, without a slash at its end.
    base: String,
    is_https: bool,
    socket: Option<PathBuf>,
}

/// Why an address is invalid. The text is not repeated: it may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("not an address: write it as http://HOST:PORT, https://HOST or unix:///PATH")]
    NotAnAddress,
    #[error("a user and password do not belong in an address: set them as credentials")]
    HasCredentials,
    #[error("an address has no query and no fragment: remove what follows `?` or `#`")]
    HasQuery,
}

impl Address {
    /// `http://host:port/path`, `https://…`, `unix:///path` or `unix:/path`.
    ///
    /// # Errors
    /// If it is none of these, or holds a credential.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if !path.starts_with('/') || path.contains('\0') {
                return Err(AddressError::NotAnAddress);
            }
            let base = "http://localhost".to_owned();
            return Ok(Self { base, is_https: false, socket: Some(PathBuf::from(path)) });
        }
        let url = Url::parse(text).map_err(|_| AddressError::NotAnAddress)?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(AddressError::NotAnAddress);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(AddressError::HasCredentials);
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(AddressError::HasQuery);
        }
        let base = url.as_str().trim_end_matches('/').to_owned();
        Ok(Self { base, is_https: url.scheme() == "https", socket: None })
    }

    #[must_use]
    pub fn is_https(&self) -> bool {
        self.is_https
    }

    #[must_use]
    pub(crate) fn socket(&self) -> Option<&PathBuf> {
        self.socket.as_ref()
    }

    /// The address that this path is below, if it ends in it.
    #[must_use]
    pub(crate) fn without(&self, path: &str) -> Self {
        // Two slashes are before the host.
        let base = self.base.strip_suffix(path).filter(|base| !base.ends_with('/'));
        Self { base: base.unwrap_or(&self.base).to_owned(), ..self.clone() }
    }

    /// The URL of a path below it.
    pub(crate) fn join(&self, path: &str) -> Result<Url, AddressError> {
        Url::parse(&format!("{}{path}", self.base)).map_err(|_| AddressError::NotAnAddress)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.socket {
            Some(path) => write!(out, "unix://{}", path.display()),
            None => out.write_str(&self.base),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

#[cfg(test)]
mod tests {
    use super::{Address, AddressError};

    #[test]
    fn an_address_is_a_url_or_a_socket() {
        for (text, shown) in [
            ("http://localhost:4040", "http://localhost:4040"),
            ("https://a.example/prefix/", "https://a.example/prefix"),
            ("unix:///var/run/apm.socket", "unix:///var/run/apm.socket"),
            ("unix:/var/run/apm.socket", "unix:///var/run/apm.socket"),
        ] {
            assert_eq!(Address::parse(text).map(|address| address.to_string()), Ok(shown.into()));
        }
    }

    #[test]
    fn a_path_that_is_there_already_is_taken_off_once() {
        let path = "/v1/profiles";
        for (text, base) in [
            ("http://c:4318/v1/profiles", "http://c:4318"),
            ("http://c:4318/v1/profiles/", "http://c:4318"),
            ("https://c/own/v1/profiles", "https://c/own"),
            ("http://c:4318", "http://c:4318"),
            ("http://c:4318/other", "http://c:4318/other"),
            ("http://v1/profiles", "http://v1/profiles"),
        ] {
            let address = Address::parse(text).expect(text);
            let url = address.without(path).join(path).map(|url| url.to_string());
            assert_eq!(url, Ok(format!("{base}{path}")), "{text}");
        }
    }

    #[test]
    fn an_address_never_holds_a_secret() {
        for (text, error) in [
            ("https://user:pass@host", AddressError::HasCredentials),
            ("https://token@host", AddressError::HasCredentials),
            ("https://host/?key=abc", AddressError::HasQuery),
            ("ftp://host", AddressError::NotAnAddress),
            ("localhost:4040", AddressError::NotAnAddress),
            ("unix://relative", AddressError::NotAnAddress),
            ("", AddressError::NotAnAddress),
        ] {
            assert_eq!(Address::parse(text), Err(error), "{text}");
        }
    }
}

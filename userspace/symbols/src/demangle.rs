//! From the linker's names to names as in the source.
//!
//! Versions (`@@GLIBC_2.2.5`) and the marks of compiler clones (`.constprop.0`, `.isra.0`,
//! `.part.0`, `.cold`, …) are stripped, Rust names lose their hash, C++ names their parameters and
//! return type. The raw name is the caller's to keep.
//!
//! Invariant: output is bounded while it is written, so a short mangled name cannot unfold into
//! gigabytes; recursion is bounded too.

use crate::MAX_NAME_BYTES;
use std::borrow::Cow;
use std::fmt::{self, Write};
use strata_bytes::bounded_str;

const MAX_RECURSION: u32 = 96;

/// Marks that compilers append to the name of a function they split or specialised.
const CLONE_MARKS: [&str; 11] = [
    ".constprop.",
    ".isra.",
    ".part.",
    ".cold",
    ".lto_priv.",
    ".llvm.",
    ".localalias",
    ".clone.",
    ".resolver",
    ".ifunc",
    ".warm",
];

/// Text that refuses to grow beyond [`MAX_NAME_BYTES`].
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        let left = MAX_NAME_BYTES.saturating_sub(self.0.len());
        if piece.len() <= left {
            self.0.push_str(piece);
            return Ok(());
        }
        let fits = piece.floor_char_boundary(left);
        self.0.push_str(piece.get(..fits).unwrap_or_default());
        Err(fmt::Error)
    }
}

/// The name to show for a raw symbol name.
#[must_use]
pub fn clean_name(raw: &str) -> Cow<'_, str> {
    let name = without_clone_marks(without_version(raw));
    if let Some(name) = rust(name).or_else(|| cpp(name)) {
        return Cow::Owned(name);
    }
    Cow::Borrowed(bounded_str(name))
}

fn without_version(name: &str) -> &str {
    let Some((function, version)) = name.split_once('@') else { return name };
    let version = version.strip_prefix('@').unwrap_or(version);
    // `*Array(Int32)@Indexable(Int32)#each` is a method of Crystal's.
    let is_version = !version.is_empty()
        && version.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.+-".contains(&byte));
    if is_version && !function.is_empty() && version != "plt" { function } else { name }
}

/// `name` without the marks of compiler clones.
#[must_use]
pub fn without_clone_marks(name: &str) -> &str {
    let first = CLONE_MARKS
        .iter()
        .filter_map(|mark| {
            let at = name.find(mark)?;
            // `.cold` is a mark only at the end or before another mark: `foo.coldness` is not one, and
            // `.part.` is one before a number only.
            let rest = name.get(at.checked_add(mark.len())?..)?;
            let rest = match mark.ends_with('.') {
                true => {
                    let number = rest.bytes().take_while(u8::is_ascii_digit).count();
                    rest.get(number..).filter(|_| number > 0)?
                }
                false => rest,
            };
            let whole = rest.is_empty() || rest.starts_with('.');
            (whole && at > 0).then_some(at)
        })
        .min();
    first.and_then(|at| name.get(..at)).unwrap_or(name)
}

/// Old Rust names look like C++ ones, but for the hash at their end.
fn has_rust_hash(name: &str) -> bool {
    name.rfind("17h").is_some_and(|at| {
        let hash = name.get(at.saturating_add(3)..).unwrap_or_default();
        let digits = hash.bytes().take_while(u8::is_ascii_hexdigit).count();
        // `E` is no digit of a lower-case hash, but `e` to `E` is what the count may run into.
        digits >= 16 && hash.as_bytes().get(16) == Some(&b'E')
    })
}

fn rust(name: &str) -> Option<String> {
    let new = name.starts_with("_R");
    let old = (name.starts_with("_ZN") || name.starts_with("ZN")) && has_rust_hash(name);
    if !new && !old {
        return None;
    }
    let demangled = rustc_demangle::try_demangle(name).ok()?;
    let mut text = Bounded(String::new());
    // An error means that the name is truncated, as intended.
    let _ = write!(text, "{demangled:#}");
    let text = without_outer_brackets(&text.0).unwrap_or(text.0);
    (!text.is_empty()).then_some(text)
}

/// New mangling writes `<path::Type>::method` where old mangling and source code write
/// `path::Type::method`. `<Type as Trait>::method` stays.
fn without_outer_brackets(name: &str) -> Option<String> {
    let inside = name.strip_prefix('<')?;
    let mut depth = 1_u32;
    let mut before = ' ';
    for (at, character) in inside.char_indices() {
        match character {
            '<' => depth = depth.saturating_add(1),
            // `->` of function types is no bracket.
            '>' if before != '-' => depth = depth.saturating_sub(1),
            _ => {}
        }
        before = character;
        if depth == 0 {
            let (path, rest) = inside.split_at_checked(at)?;
            let method = rest.strip_prefix('>').filter(|rest| rest.starts_with("::"))?;
            let plain = path.chars().next()?.is_alphabetic() && !path.contains(" as ");
            return plain.then(|| format!("{path}{method}"));
        }
    }
    None
}

fn cpp(name: &str) -> Option<String> {
    if !name.starts_with("_Z") {
        return None;
    }
    let limits = cpp_demangle::ParseOptions::default().recursion_limit(MAX_RECURSION);
    let symbol = cpp_demangle::BorrowedSymbol::new_with_options(name.as_bytes(), &limits).ok()?;
    let options = cpp_demangle::DemangleOptions::new()
        .no_params()
        .no_return_type()
        .recursion_limit(MAX_RECURSION);
    let mut text = Bounded(String::new());
    match symbol.structured_demangle(&mut text, &options) {
        Ok(()) => {}
        // Truncated because it is long: still the best name.
        Err(_) if text.0.len() >= MAX_NAME_BYTES.saturating_sub(4) => {}
        Err(_) => return None,
    }
    (!text.0.is_empty()).then_some(text.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_names_lose_their_hash() {
        assert_eq!(
            clean_name("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE"),
            "core::fmt::Formatter::pad"
        );
        assert_eq!(
            clean_name("_ZN4core3fmt9Formatter3pad17h0123456789abcdeeE.llvm.1234"),
            "core::fmt::Formatter::pad"
        );
        assert_eq!(clean_name("_RNvNtCs1234_7mycrate3foo3bar"), "mycrate::foo::bar");
    }

    #[test]
    fn a_type_around_a_method_needs_no_brackets() {
        let bare = |name| without_outer_brackets(name);
        assert_eq!(bare("<shop::Order<u32>>::total").as_deref(), Some("shop::Order<u32>::total"));
        assert_eq!(bare("<shop::Order as core::fmt::Debug>::fmt"), None);
        assert_eq!(bare("<[u8]>::iter"), None);
        assert_eq!(
            bare("<shop::Call<fn(u8) -> u8>>::run").as_deref(),
            Some("shop::Call<fn(u8) -> u8>::run")
        );
        assert_eq!(bare("<shop::Order<u32"), None);
        assert_eq!(bare("plain::name"), None);
    }

    #[test]
    fn cpp_names_lose_parameters_and_return_types() {
        assert_eq!(clean_name("_ZN4shop5Order3payEiRKSs"), "shop::Order::pay");
        assert_eq!(clean_name("_ZSt4sortIPiEvT_S1_"), "std::sort<int*>");
        assert_eq!(clean_name("_ZN4shop5Order3payEi.constprop.0"), "shop::Order::pay");
    }

    #[test]
    fn clone_marks_and_versions_are_cut() {
        assert_eq!(clean_name("work.constprop.0.isra.0"), "work");
        assert_eq!(clean_name("work.cold"), "work");
        assert_eq!(clean_name("work.part.3.cold"), "work");
        assert_eq!(clean_name("work.coldness"), "work.coldness");
        assert_eq!(clean_name("memcpy@@GLIBC_2.14"), "memcpy");
        assert_eq!(clean_name("memcpy@plt"), "memcpy@plt");
        assert_eq!(clean_name(".cold"), ".cold");
        assert_eq!(clean_name("memcpy@GLIBC_2.2.5"), "memcpy");
        for whole in ["*Array(Int32)@Indexable(Int32)#each:Nil", "kfun:com.shop.part.Order#pay(){}"]
        {
            assert_eq!(clean_name(whole), whole);
        }
    }

    #[test]
    fn names_that_unfold_without_end_are_cut() {
        // Each substitution doubles what it refers to.
        let mut name = String::from("_Z1fI1A");
        for _ in 0..60 {
            name.push_str("S_IS_S_E");
        }
        name.push_str("Evv");
        assert!(clean_name(&name).len() <= MAX_NAME_BYTES);
        assert!(clean_name(&"a".repeat(1 << 20)).len() <= MAX_NAME_BYTES);
        assert!(clean_name(&format!("_Z{}", "P".repeat(1 << 16))).len() <= MAX_NAME_BYTES);
    }
}

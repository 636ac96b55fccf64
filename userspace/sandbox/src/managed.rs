//! Methods, lines and facts of .NET files: the daemon's requests and the worker's answers.
//!
//! [`requests`] and [`answers`] are their bytes. Names are raw: making them readable is the daemon's
//! job.

mod answers;
mod requests;

use std::sync::Arc;

use strata_dotnet::bundle::BundledFile;
use strata_dotnet::{CodePart, PdbReference};

pub(crate) use answers::{decode_bundle, encode_bundle};
pub(crate) use requests::{
    decode_il_places, decode_part, decode_pdb_id, decode_places, encode_facts_request,
    encode_lines_request, encode_names_request, encode_part,
};

/// A file inside a file: an assembly or a PDB in a single-file program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FilePart {
    pub offset: u64,
    /// As stored.
    pub length: u64,
    /// How long it is when unpacked, if it is compressed.
    pub unpacked: Option<u64>,
}

impl FilePart {
    /// A file of a bundle.
    #[must_use]
    pub fn of(file: &BundledFile) -> Self {
        let unpacked = file.is_compressed().then_some(file.size);
        Self { offset: file.offset, length: file.stored_size(), unpacked }
    }
}

/// Where code is in an assembly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImagePlace {
    /// An offset of the assembly as a file.
    Offset(u64),
    /// An address of the loaded assembly, from its base.
    Address(u32),
}

/// Where the code of an assembly is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AssemblyCode {
    /// All of it is JIT-compiled.
    Il,
    /// Precompiled code is in the file.
    Precompiled,
    /// Precompiled code of several assemblies, without their metadata.
    Composite,
    /// Precompiled code is in a composite file of this name.
    InComposite { owner: String },
    /// There is precompiled code, and its tables are damaged.
    Damaged,
}

/// The facts from an assembly's headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagedFacts {
    pub assembly: Option<String>,
    /// The identity of the build.
    pub mvid: Option<[u8; 16]>,
    /// The portable PDB that belongs to it.
    pub pdb: Option<PdbReference>,
    pub has_embedded_pdb: bool,
    pub code: AssemblyCode,
}

/// A method as the metadata names it; see [`strata_dotnet::MethodRef`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ManagedMethod {
    pub token: u32,
    /// The assembly of the token, when it is another one: then there are no names.
    pub assembly: Option<Arc<str>>,
    pub type_token: u32,
    /// `Namespace.Outer+Inner`, with arity marks.
    pub type_name: Arc<str>,
    pub method_name: Arc<str>,
    pub class_params: Vec<Arc<str>>,
    pub method_params: Vec<Arc<str>>,
    pub signature: Vec<u8>,
    /// Exact value types; empty for a shared (reference type) argument.
    pub class_args: Vec<Arc<str>>,
    pub method_args: Vec<Arc<str>>,
    /// The method that a lambda is written in, when its own name does not show it.
    pub around: Option<Arc<str>>,
    /// A stub that calls the method.
    pub stub: bool,
    /// Other methods have the very same code.
    pub shared: bool,
    /// Of the method's code in the loaded image.
    pub start_rva: u32,
    pub size: u32,
    pub part: CodePart,
}

/// The answer to a request for names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ManagedNames {
    /// One for each place, in the order asked.
    pub methods: Vec<Option<Arc<ManagedMethod>>>,
    /// Likewise: the IL offset in its method that a place came from.
    pub il_offsets: Vec<Option<u32>>,
    /// Names of the types that the signatures refer to, by token, each once, sorted.
    pub types: Vec<(u32, Arc<str>)>,
}

/// The IL of a method, from which a line is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IlPlace {
    /// A MethodDef.
    pub token: u32,
    pub il_offset: u32,
}

/// The answer to a request for lines: document and line for each place, in the order asked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ManagedLines {
    pub lines: Vec<Option<(Arc<str>, u32)>>,
}

impl ManagedNames {
    /// The name of a type that a signature refers to.
    #[must_use]
    pub fn type_name(&self, token: u32) -> Option<&Arc<str>> {
        let at = self.types.binary_search_by_key(&token, |(token, _)| *token).ok()?;
        self.types.get(at).map(|(_, name)| name)
    }
}

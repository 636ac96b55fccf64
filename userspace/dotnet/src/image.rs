//! [`ManagedImage`]: one assembly's file, with its methods by token and by code address.
//!
//! Invariant: the tables of precompiled code are read when they are first asked for, once; a caller
//! that wants only names of tokens does not pay for them.

use std::cell::OnceCell;

use crate::debug_directory::{DebugDirectory, PdbReference};
use crate::metadata::{MAX_METADATA, Metadata};
use crate::pe::PeImage;
use crate::readytorun::debug_info::DebugInfo;
use crate::readytorun::instance::{Instance, instance_at};
use crate::readytorun::{Found, NativeCode, Owner, RuntimeFunction};
use crate::signature::TypeNames;
use crate::{Error, PortablePdb};
use strata_bytes::ReadAt;
use strata_ecma::{table, token};

/// Longer signatures are not returned; real ones take some tens of bytes.
const MAX_SIGNATURE: usize = 16 << 10;
/// Of all the type parameters, or arguments, of one method together.
const MAX_LIST_BYTES: usize = 16 << 10;

/// The runtime's name for code that calls a native function (`src/coreclr/vm/ilstubcache.cpp`).
pub const P_INVOKE: &str = "IL_STUB_PInvoke";

/// The part of a method that an address is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CodePart {
    #[default]
    Body,
    /// A handler or filter: code of the method with a frame of its own.
    Funclet,
    /// Code that is rarely run, placed apart.
    Cold,
}

/// A method, as the metadata names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MethodRef {
    /// MethodDef or MemberRef.
    pub token: u32,
    /// The assembly that the token is of, when it is not this one: its names are not known here.
    pub assembly: Option<String>,
    /// TypeDef, TypeRef or TypeSpec.
    pub type_token: u32,
    /// `Namespace.Outer+Inner`, with arity marks.
    pub type_name: String,
    pub method_name: String,
    pub class_params: Vec<String>,
    pub method_params: Vec<String>,
    pub signature: Vec<u8>,
    /// One for each parameter of an instance, or none. Value types are exact, `` Name`1[Argument] ``
    /// if generic; empty text stands for any reference type.
    pub class_args: Vec<String>,
    pub method_args: Vec<String>,
    /// A stub that calls the method: unboxes, or passes type arguments on.
    pub stub: bool,
    /// Other methods have the very same code: this is one of them. Native functions of one
    /// signature have, in .NET Core 3: which of them it is cannot be known, and its name is
    /// [`P_INVOKE`].
    pub shared: bool,
    /// Of the whole method's code, cold parts aside; 0 for a lookup by token.
    pub start_rva: u32,
    pub size: u32,
    pub part: CodePart,
}

/// An open assembly.
pub struct ManagedImage<'a> {
    pe: PeImage<'a>,
    /// A composite image has none of its own.
    metadata: Option<Metadata>,
    debug: DebugDirectory,
    code: OnceCell<Result<Option<NativeCode>, Error>>,
    debug_info: OnceCell<Option<DebugInfo>>,
}

/// Names of types in this image's modules.
struct ImageNames<'a>(&'a Metadata);

impl TypeNames for ImageNames<'_> {
    fn type_name(&self, module: u32, token: u32) -> Option<String> {
        (module == 0).then(|| self.0.type_name(token))?
    }
}

impl<'a> ManagedImage<'a> {
    /// # Errors
    /// When the file is no PE image, has neither metadata nor precompiled code, or is damaged.
    pub fn open(file: &'a dyn ReadAt) -> Result<Self, Error> {
        let pe = PeImage::open(file)?;
        let metadata = match pe.cli().map(|cli| cli.metadata).filter(|place| !place.is_empty()) {
            Some(place) => {
                let bytes = pe.read("metadata", place.rva, place.size.into(), MAX_METADATA)?;
                Some(Metadata::parse(bytes)?)
            }
            None => None,
        };
        // An error in it loses lines, not names.
        let debug = DebugDirectory::read(&pe).unwrap_or_default();
        let image =
            Self { pe, metadata, debug, code: OnceCell::new(), debug_info: OnceCell::new() };
        if image.metadata.is_none() && !matches!(image.native_code(), Ok(Some(_))) {
            return Err(Error::NotManaged);
        }
        Ok(image)
    }

    #[must_use]
    pub fn pe(&self) -> &PeImage<'a> {
        &self.pe
    }

    #[must_use]
    pub fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    /// The identity of the build.
    #[must_use]
    pub fn mvid(&self) -> Option<[u8; 16]> {
        self.metadata.as_ref()?.mvid()
    }

    /// The PDB that belongs to it.
    #[must_use]
    pub fn pdb(&self) -> Option<&PdbReference> {
        self.debug.pdb.as_ref()
    }

    #[must_use]
    pub fn debug_directory(&self) -> &DebugDirectory {
        &self.debug
    }

    /// The PDB inside it, checked to be its own.
    ///
    /// # Errors
    /// When there is one that does not unpack, is damaged, or of another build.
    pub fn embedded_pdb(&self) -> Result<Option<PortablePdb>, Error> {
        let Some(bytes) = self.debug.embedded_pdb(&self.pe)? else { return Ok(None) };
        let pdb = PortablePdb::parse(bytes)?;
        match self.pdb() {
            Some(reference) => pdb.check(reference.id)?,
            None => return Err(Error::Damaged { what: "debug directory" }),
        }
        Ok(Some(pdb))
    }

    /// Its precompiled code, if it has any.
    ///
    /// # Errors
    /// When the tables of it are damaged.
    pub fn native_code(&self) -> Result<Option<&NativeCode>, &Error> {
        let methods = self.metadata.as_ref().map_or(0, |metadata| metadata.rows(table::METHOD_DEF));
        self.code.get_or_init(|| NativeCode::read(&self.pe, methods)).as_ref().map(Option::as_ref)
    }

    /// All pieces of precompiled code.
    #[must_use]
    pub fn runtime_functions(&self) -> &[RuntimeFunction] {
        self.native_code().ok().flatten().map_or(&[], NativeCode::runtime_functions)
    }

    /// Whether the byte at an address of the loaded image may be code.
    #[must_use]
    pub fn is_code(&self, rva: u32) -> bool {
        self.pe.sections().iter().any(|section| {
            section.is_executable() && rva.wrapping_sub(section.rva) < section.virtual_size
        })
    }

    /// The address of a byte of the file in the loaded image.
    #[must_use]
    pub fn rva_of(&self, offset: u64) -> Option<u32> {
        self.pe.rva_of(offset)
    }

    /// Where the byte at an address of the loaded image is in the file.
    #[must_use]
    pub fn offset_of(&self, rva: u32) -> Option<u64> {
        self.pe.offset_of(rva)
    }

    /// A method by its MethodDef or MemberRef.
    #[must_use]
    pub fn method(&self, token: u32) -> Option<MethodRef> {
        let metadata = self.metadata.as_ref()?;
        let method = metadata.method(token)?;
        let mut type_name = metadata.type_name(method.type_token);
        let mut generic = method.type_token;
        if let Some(spec) = metadata.type_spec(method.type_token) {
            type_name = crate::signature::type_text(metadata, spec);
            generic = 0;
        }
        Some(MethodRef {
            token,
            type_token: method.type_token,
            type_name: type_name.unwrap_or_default(),
            method_name: metadata.method_name(&method)?,
            class_params: bounded_list(metadata.generic_params(generic)),
            method_params: bounded_list(metadata.generic_params(token)),
            signature: Some(method.signature)
                .filter(|signature: &&[u8]| <[u8]>::len(signature) <= MAX_SIGNATURE)
                .unwrap_or_default()
                .to_vec(),
            ..MethodRef::default()
        })
    }

    /// The method whose precompiled code is at an address of the loaded image.
    #[must_use]
    pub fn method_at_rva(&self, rva: u32) -> Option<MethodRef> {
        let code = self.native_code().ok().flatten()?;
        let found = code.find(rva)?;
        let mut method = match found.owner {
            Owner::Method(row) => self.method(token(table::METHOD_DEF, row))?,
            Owner::Instance(at) => self.instance(code, at)?,
        };
        let Found { entry, function, cold, shared, .. } = found;
        method.shared = shared;
        let has_il = || Some(self.metadata.as_ref()?.method(method.token)?.il_rva != 0);
        if shared && has_il() == Some(false) {
            method = MethodRef {
                token: method.token,
                method_name: P_INVOKE.to_string(),
                signature: method.signature,
                shared,
                ..MethodRef::default()
            };
        }
        method.start_rva = entry.begin;
        method.size = entry.end.saturating_sub(entry.begin);
        method.part = match (cold, function.begin == entry.begin) {
            (true, _) => CodePart::Cold,
            (false, true) => CodePart::Body,
            (false, false) => CodePart::Funclet,
        };
        Some(method)
    }

    /// Where the code of a precompiled method begins, and where its statements do, by an address of
    /// its code.
    #[must_use]
    pub fn il_map_at_rva(&self, rva: u32) -> Option<(u32, Vec<(u32, i32)>)> {
        let code = self.native_code().ok().flatten()?;
        let found = code.find(rva).filter(|found| !found.cold)?;
        let debug_info = self.debug_info.get_or_init(|| code.debug_info(&self.pe));
        Some((found.entry.begin, debug_info.as_ref()?.il_map(found.first)?))
    }

    fn instance(&self, code: &NativeCode, at: u32) -> Option<MethodRef> {
        let names = ImageNames(self.metadata.as_ref()?);
        let instance = instance_at(code.instances(), strata_bytes::index(at), &names)?;
        let Instance { module, token, stub, class_args, method_args } = instance;
        let token = token?;
        let mut method = match module {
            0 => self.method(token)?,
            module => MethodRef {
                token,
                assembly: Some(self.assembly_of(code, module)?),
                ..MethodRef::default()
            },
        };
        method.stub = stub;
        method.class_args = bounded_list(class_args);
        method.method_args = bounded_list(method_args);
        Some(method)
    }

    /// The assembly that a module number of a signature means ("ManifestMetadata" in
    /// `readytorun-format.md`).
    fn assembly_of(&self, code: &NativeCode, module: u32) -> Option<String> {
        let metadata = self.metadata.as_ref()?;
        let own = metadata.rows(table::ASSEMBLY_REF);
        match module.checked_sub(own) {
            None | Some(0) => metadata.assembly_ref(module),
            Some(beyond) => code.manifest.as_ref()?.assembly_ref(beyond.checked_sub(1)?),
        }
    }
}

/// The texts up to [`MAX_LIST_BYTES`]; those beyond are empty, so that positions stay.
fn bounded_list(mut texts: Vec<String>) -> Vec<String> {
    let mut left = MAX_LIST_BYTES;
    for text in &mut texts {
        match left.checked_sub(text.len()) {
            Some(rest) => left = rest,
            None => *text = String::new(),
        }
    }
    texts
}

//! A worker's jobs on .NET files: see [`crate::managed`] for requests and answers.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use strata_dotnet::readytorun::{Kind, NativeCode};
use strata_dotnet::{
    Bundle, ManagedImage, Metadata, MethodRef, Part, PortablePdb, ReadAt, signature, statement_at,
};

use crate::jobs::{JobError, parse_error};
use crate::managed::{
    AssemblyCode, FilePart, IlPlace, ImagePlace, ManagedFacts, ManagedLines, ManagedMethod,
    ManagedNames, decode_il_places, decode_part, decode_pdb_id, decode_places, encode_bundle,
};
use crate::target_file::TargetFile;
use crate::wire::Decoder;

/// The most bytes of type names in one answer.
const MAX_TYPE_TEXT: usize = 8 << 20;

fn failed(error: strata_dotnet::Error) -> JobError {
    parse_error(&error)
}

/// Runs `work` on the file, or on a part of it.
pub(crate) fn with_part(
    file: &TargetFile,
    part: Option<FilePart>,
    work: impl FnOnce(&dyn ReadAt) -> Result<Vec<u8>, JobError>,
) -> Result<Vec<u8>, JobError> {
    match part {
        None => work(file),
        Some(FilePart { offset, length, unpacked: None }) => work(&Part::new(file, offset, length)),
        Some(FilePart { offset, length, unpacked: Some(size) }) => {
            let bytes = strata_dotnet::bundle::unpack(file, offset, length, size);
            work(&bytes.map_err(failed)?)
        }
    }
}

/// The facts from an assembly's headers.
pub(crate) fn facts(body: &[u8], file: &TargetFile) -> Result<Vec<u8>, JobError> {
    let mut decoder = Decoder::new(body);
    let part = decode_part(&mut decoder)?;
    decoder.finish()?;
    with_part(file, part, |file| {
        let image = ManagedImage::open(file).map_err(failed)?;
        let code = match image.native_code() {
            Ok(Some(code)) => match &code.kind {
                Kind::Single => AssemblyCode::Precompiled,
                Kind::Composite => AssemblyCode::Composite,
                Kind::Component { owner } => AssemblyCode::InComposite { owner: owner.clone() },
            },
            Ok(None) => AssemblyCode::Il,
            Err(_) => AssemblyCode::Damaged,
        };
        let facts = ManagedFacts {
            assembly: image.metadata().and_then(Metadata::assembly_name),
            mvid: image.mvid(),
            pdb: image.pdb().cloned(),
            has_embedded_pdb: image.debug_directory().has_embedded_pdb(),
            code,
        };
        Ok(facts.encode())
    })
}

/// The methods whose precompiled code is at some places.
pub(crate) fn names(body: &[u8], file: &TargetFile) -> Result<Vec<u8>, JobError> {
    let mut decoder = Decoder::new(body);
    let part = decode_part(&mut decoder)?;
    let places = decode_places(&mut decoder)?;
    decoder.finish()?;
    with_part(file, part, |file| {
        let image = ManagedImage::open(file).map_err(failed)?;
        let code = image.native_code().map_err(|error| parse_error(error))?;
        let mut known = Known::default();
        let methods = places.iter().map(|place| known.method(&image, code?, *place)).collect();
        let il_offsets = match image.pdb() {
            Some(_) => places.iter().map(|place| known.il_offset(&image, code?, *place)).collect(),
            // No source line could be derived from them.
            None => vec![None; places.len()],
        };
        let types = known.types.into_iter().collect();
        Ok(ManagedNames { methods, il_offsets, types }.encode())
    })
}

fn address_of(image: &ManagedImage<'_>, place: ImagePlace) -> Option<u32> {
    match place {
        ImagePlace::Offset(offset) => image.rva_of(offset),
        ImagePlace::Address(address) => Some(address),
    }
}

/// The placeholder for the name of an image's own stubs.
const IMAGE_STUB: &str = "runtime call";

/// The results of one request: each function is examined once.
type Statements = Vec<(u32, i32)>;

#[derive(Default)]
struct Known {
    methods: HashMap<u32, Option<Arc<ManagedMethod>>>,
    /// By function: where its code begins, and its statements.
    il_maps: HashMap<u32, Option<(u32, Statements)>>,
    stub: Option<Arc<ManagedMethod>>,
    types: BTreeMap<u32, Arc<str>>,
    type_text: usize,
}

impl Known {
    fn method(
        &mut self,
        image: &ManagedImage<'_>,
        code: &NativeCode,
        place: ImagePlace,
    ) -> Option<Arc<ManagedMethod>> {
        let address = address_of(image, place)?;
        let Some((function, _)) = code.function_at(address) else {
            return image.is_code(address).then(|| self.stub(code))?;
        };
        if let Some(known) = self.methods.get(&function) {
            return known.clone();
        }
        let method = image.method_at_rva(address).map(|method| {
            if let Some(metadata) = image.metadata() {
                self.learn_types(metadata, &method);
            }
            let around = match method.assembly {
                None => image.method_around(method.token).map(Arc::from),
                Some(_) => None,
            };
            Arc::new(ManagedMethod { around, ..sent(method) })
        });
        self.methods.insert(function, method.clone());
        method
    }

    /// The IL offset that the code at a place was compiled from.
    fn il_offset(
        &mut self,
        image: &ManagedImage<'_>,
        code: &NativeCode,
        place: ImagePlace,
    ) -> Option<u32> {
        let address = address_of(image, place)?;
        let (function, _) = code.function_at(address)?;
        let map = self.il_maps.entry(function).or_insert_with(|| image.il_map_at_rva(address));
        let (begin, map) = map.as_ref()?;
        let (start, _) = statement_at(map, address.checked_sub(*begin)?)?;
        Some(start)
    }

    /// Code of an image outside its functions: the stubs through which it calls code that is not
    /// resolved yet.
    fn stub(&mut self, code: &NativeCode) -> Option<Arc<ManagedMethod>> {
        if matches!(code.kind, Kind::Component { .. }) {
            return None;
        }
        let stub = MethodRef { method_name: IMAGE_STUB.into(), stub: true, ..MethodRef::default() };
        Some(self.stub.get_or_insert_with(|| Arc::new(sent(stub))).clone())
    }

    fn learn_types(&mut self, metadata: &Metadata, method: &MethodRef) {
        for token in signature::type_tokens(&method.signature) {
            if self.type_text > MAX_TYPE_TEXT || self.types.contains_key(&token) {
                continue;
            }
            let name = match metadata.type_spec(token) {
                Some(spec) => signature::type_text(metadata, spec),
                None => metadata.type_name(token),
            };
            let name = name.unwrap_or_default();
            // Entries count too: a token takes more than its name may.
            self.type_text = self.type_text.saturating_add(name.len()).saturating_add(16);
            self.types.insert(token, name.into());
        }
    }
}

fn sent(method: MethodRef) -> ManagedMethod {
    let list = |texts: Vec<String>| texts.into_iter().map(Arc::from).collect();
    ManagedMethod {
        token: method.token,
        assembly: method.assembly.map(Arc::from),
        type_token: method.type_token,
        type_name: method.type_name.into(),
        method_name: method.method_name.into(),
        class_params: list(method.class_params),
        method_params: list(method.method_params),
        signature: method.signature,
        class_args: list(method.class_args),
        method_args: list(method.method_args),
        around: None,
        stub: method.stub,
        shared: method.shared,
        start_rva: method.start_rva,
        size: method.size,
        part: method.part,
    }
}

/// The lines that the IL of some methods came from, out of a PDB or an assembly with one inside.
pub(crate) fn lines(body: &[u8], file: &TargetFile) -> Result<Vec<u8>, JobError> {
    let mut decoder = Decoder::new(body);
    let part = decode_part(&mut decoder)?;
    let wanted = decode_pdb_id(&mut decoder)?;
    let places = decode_il_places(&mut decoder)?;
    decoder.finish()?;
    with_part(file, part, |file| {
        let mut magic = [0; 2];
        let read = file.read_at(0, &mut magic);
        let pdb = if read.is_ok_and(|length| length == 2) && magic == *b"MZ" {
            let image = ManagedImage::open(file).map_err(failed)?;
            let pdb = image.embedded_pdb().map_err(failed)?;
            let pdb = pdb.ok_or_else(|| JobError::Parse("there is no PDB inside".into()))?;
            pdb.check(wanted).map_err(failed)?;
            pdb
        } else {
            PortablePdb::open(file, wanted).map_err(failed)?
        };
        Ok(lines_of(&pdb, &places).encode())
    })
}

fn lines_of(pdb: &PortablePdb, places: &[IlPlace]) -> ManagedLines {
    // By method, so that each method's points are read once.
    let mut order: Vec<(usize, IlPlace)> = places.iter().copied().enumerate().collect();
    order.sort_by_key(|(_, place)| place.token);
    let mut documents: HashMap<u32, Option<Arc<str>>> = HashMap::new();
    let mut lines = vec![None; places.len()];
    for same in order.chunk_by(|(_, one), (_, next)| one.token == next.token) {
        let Some((_, IlPlace { token, .. })) = same.first() else { continue };
        let points = pdb.lines_of(*token);
        for (position, place) in same {
            let found = strata_dotnet::pdb::point_at(&points, place.il_offset).and_then(|point| {
                let document = documents
                    .entry(point.document)
                    .or_insert_with(|| pdb.document(point.document).map(Arc::from));
                Some((document.clone()?, point.line))
            });
            if let Some(line) = lines.get_mut(*position) {
                *line = found;
            }
        }
    }
    ManagedLines { lines }
}

/// The files inside a single-file program.
pub(crate) fn bundle(file: &TargetFile) -> Result<Vec<u8>, JobError> {
    Bundle::open(file).map(|bundle| encode_bundle(&bundle)).map_err(failed)
}

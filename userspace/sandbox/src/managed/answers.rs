//! Answers about .NET files as bytes.
//!
//! Invariant: what is decoded takes memory in proportion to the bytes it was decoded from, and no
//! text, list or signature is longer than the parsers make them.

use std::sync::Arc;

use strata_dotnet::bundle::{BundledFile, FileKind};
use strata_dotnet::{Bundle, CodePart, MAX_NAME_BYTES, PdbReference};

use super::{AssemblyCode, ManagedFacts, ManagedLines, ManagedMethod, ManagedNames, decode_pdb_id};
use crate::texts::{TextTable, Texts, count_of};
use crate::wire::{Decoder, Encoder, WireError};

/// Signatures are not longer, type lists neither (`strata_dotnet::image`).
const MAX_SIGNATURE: usize = 16 << 10;
const MAX_LIST: usize = 256;

/// Text of at most the length that names have.
fn decode_name(bytes: &[u8]) -> Result<String, WireError> {
    if bytes.len() > MAX_NAME_BYTES {
        return Err(WireError::Invalid("the length of a name"));
    }
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

impl ManagedFacts {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::new();
        encoder.optional_bytes(self.assembly.as_deref().map(str::as_bytes));
        encoder.optional_bytes(self.mvid.as_ref().map(<[u8; 16]>::as_slice));
        match &self.pdb {
            None => encoder.u8(0),
            Some(pdb) => encoder.u8(1).bytes(&pdb.id.0).u32(pdb.age).bytes(pdb.path.as_bytes()),
        };
        encoder.u8(self.has_embedded_pdb.into());
        match &self.code {
            AssemblyCode::Il => encoder.u8(0),
            AssemblyCode::Precompiled => encoder.u8(1),
            AssemblyCode::Composite => encoder.u8(2),
            AssemblyCode::InComposite { owner } => encoder.u8(3).bytes(owner.as_bytes()),
            AssemblyCode::Damaged => encoder.u8(4),
        };
        encoder.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut decoder = Decoder::new(bytes);
        let assembly = decoder.optional_bytes()?.map(decode_name).transpose()?;
        let mvid = match decoder.optional_bytes()? {
            None => None,
            Some(bytes) => Some(bytes.try_into().map_err(|_| WireError::Invalid("an mvid"))?),
        };
        let pdb = if decoder.bool()? {
            let id = decode_pdb_id(&mut decoder)?;
            Some(PdbReference { id, age: decoder.u32()?, path: decode_name(decoder.bytes()?)? })
        } else {
            None
        };
        let has_embedded_pdb = decoder.bool()?;
        let code = match decoder.u8()? {
            0 => AssemblyCode::Il,
            1 => AssemblyCode::Precompiled,
            2 => AssemblyCode::Composite,
            3 => AssemblyCode::InComposite { owner: decode_name(decoder.bytes()?)? },
            4 => AssemblyCode::Damaged,
            _ => return Err(WireError::Invalid("a kind of code")),
        };
        decoder.finish()?;
        Ok(Self { assembly, mvid, pdb, has_embedded_pdb, code })
    }
}

fn encode_list<'a>(encoder: &mut Encoder, texts: &mut Texts<'a>, list: &'a [Arc<str>]) {
    encoder.u32(count_of(list.len().min(MAX_LIST)));
    for text in list.iter().take(MAX_LIST) {
        encoder.u32(texts.number(text));
    }
}

fn decode_list(decoder: &mut Decoder<'_>, texts: &TextTable) -> Result<Vec<Arc<str>>, WireError> {
    let count = decoder.count(4)?;
    if count > MAX_LIST {
        return Err(WireError::Invalid("the length of a list"));
    }
    (0..count).map(|_| texts.get(decoder.u32()?)).collect()
}

impl ManagedMethod {
    fn encode<'a>(&'a self, encoder: &mut Encoder, texts: &mut Texts<'a>) {
        encoder.u32(self.token).u32(texts.optional(self.assembly.as_deref()));
        encoder.u32(self.type_token).u32(texts.number(&self.type_name));
        encoder.u32(texts.number(&self.method_name));
        for list in [&self.class_params, &self.method_params, &self.class_args, &self.method_args] {
            encode_list(encoder, texts, list);
        }
        encoder.bytes(self.signature.get(..MAX_SIGNATURE).unwrap_or(&self.signature));
        encoder.u32(texts.optional(self.around.as_deref()));
        encoder.u8(self.stub.into()).u8(self.shared.into());
        encoder.u32(self.start_rva).u32(self.size);
        encoder.u8(match self.part {
            CodePart::Body => 0,
            CodePart::Funclet => 1,
            CodePart::Cold => 2,
        });
    }

    fn decode(decoder: &mut Decoder<'_>, texts: &TextTable) -> Result<Self, WireError> {
        let mut method = Self {
            token: decoder.u32()?,
            assembly: texts.optional(decoder.u32()?)?,
            type_token: decoder.u32()?,
            type_name: texts.get(decoder.u32()?)?,
            method_name: texts.get(decoder.u32()?)?,
            class_params: decode_list(decoder, texts)?,
            method_params: decode_list(decoder, texts)?,
            class_args: decode_list(decoder, texts)?,
            method_args: decode_list(decoder, texts)?,
            signature: decoder.bytes()?.to_vec(),
            around: texts.optional(decoder.u32()?)?,
            stub: decoder.bool()?,
            shared: decoder.bool()?,
            start_rva: decoder.u32()?,
            size: decoder.u32()?,
            part: CodePart::Body,
        };
        if method.signature.len() > MAX_SIGNATURE {
            return Err(WireError::Invalid("the length of a signature"));
        }
        method.part = match decoder.u8()? {
            0 => CodePart::Body,
            1 => CodePart::Funclet,
            2 => CodePart::Cold,
            _ => return Err(WireError::Invalid("a part of a method")),
        };
        Ok(method)
    }
}

/// Stands for no IL offset.
const NO_IL: u32 = u32::MAX;

impl ManagedNames {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut texts = Texts::default();
        let mut methods = Encoder::new();
        let mut numbers = Encoder::new();
        // Methods that follow each other are often the same one.
        let mut count = 0_u32;
        let mut last: Option<&Arc<ManagedMethod>> = None;
        numbers.u32(count_of(self.methods.len()));
        for method in &self.methods {
            let Some(method) = method else {
                numbers.u32(0);
                continue;
            };
            if !last.is_some_and(|last| Arc::ptr_eq(last, method)) {
                method.encode(&mut methods, &mut texts);
                count = count.saturating_add(1);
                last = Some(method);
            }
            numbers.u32(count);
        }
        let mut types = Encoder::new();
        types.u32(count_of(self.types.len()));
        for (token, name) in &self.types {
            types.u32(*token).u32(texts.number(name));
        }
        let mut encoder = Encoder::new();
        texts.encode(&mut encoder);
        encoder.u32(count);
        let mut bytes = encoder.finish();
        let mut il = Encoder::new();
        for offset in &self.il_offsets {
            il.u32(offset.unwrap_or(NO_IL));
        }
        for part in [methods, numbers, il, types] {
            bytes.extend_from_slice(&part.finish());
        }
        bytes
    }

    /// `asked` is the number of places of the request.
    pub(crate) fn decode(bytes: &[u8], asked: usize) -> Result<Self, WireError> {
        let mut decoder = Decoder::new(bytes);
        let texts = TextTable::decode(&mut decoder)?;
        // Lists of no text, and a signature of no byte.
        let count = decoder.count(55)?;
        let mut distinct = Vec::with_capacity(count);
        for _ in 0..count {
            distinct.push(Arc::new(ManagedMethod::decode(&mut decoder, &texts)?));
        }
        let count = decoder.count(4)?;
        if count != asked {
            return Err(WireError::Invalid("the number of places"));
        }
        let mut methods = Vec::with_capacity(count);
        for _ in 0..count {
            methods.push(match decoder.u32()?.checked_sub(1) {
                None => None,
                Some(number) => {
                    let method = distinct.get(number as usize);
                    Some(method.cloned().ok_or(WireError::Invalid("the number of a method"))?)
                }
            });
        }
        let mut il_offsets = Vec::with_capacity(methods.len());
        for _ in 0..methods.len() {
            il_offsets.push(Some(decoder.u32()?).filter(|offset| *offset != NO_IL));
        }
        let count = decoder.count(8)?;
        let types = (0..count)
            .map(|_| Ok((decoder.u32()?, texts.get(decoder.u32()?)?)))
            .collect::<Result<Vec<_>, WireError>>()?;
        decoder.finish()?;
        if !types.is_sorted_by(|(one, _), (next, _)| one < next) {
            return Err(WireError::Invalid("the order of types"));
        }
        Ok(Self { methods, il_offsets, types })
    }
}

impl ManagedLines {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut texts = Texts::default();
        let mut lines = Encoder::new();
        lines.u32(count_of(self.lines.len()));
        for line in &self.lines {
            let (document, number) = match line {
                None => (0, 0),
                Some((document, number)) => (texts.optional(Some(document)), *number),
            };
            lines.u32(document).u32(number);
        }
        let mut encoder = Encoder::new();
        texts.encode(&mut encoder);
        let mut bytes = encoder.finish();
        bytes.extend_from_slice(&lines.finish());
        bytes
    }

    /// `asked` is the number of places of the request.
    pub(crate) fn decode(bytes: &[u8], asked: usize) -> Result<Self, WireError> {
        let mut decoder = Decoder::new(bytes);
        let texts = TextTable::decode(&mut decoder)?;
        let count = decoder.count(8)?;
        if count != asked {
            return Err(WireError::Invalid("the number of places"));
        }
        let mut lines = Vec::with_capacity(count);
        for _ in 0..count {
            let document = texts.optional(decoder.u32()?)?;
            let number = decoder.u32()?;
            lines.push(document.map(|document| (document, number)));
        }
        decoder.finish()?;
        Ok(Self { lines })
    }
}

pub(crate) fn encode_bundle(bundle: &Bundle) -> Vec<u8> {
    let mut encoder = Encoder::new();
    encoder.u32(bundle.major_version).u32(bundle.minor_version);
    encoder.u32(count_of(bundle.files.len()));
    for file in &bundle.files {
        encoder.bytes(file.path.as_bytes());
        encoder.u8(match file.kind {
            FileKind::Unknown => 0,
            FileKind::Assembly => 1,
            FileKind::NativeBinary => 2,
            FileKind::DepsJson => 3,
            FileKind::RuntimeConfigJson => 4,
            FileKind::Symbols => 5,
        });
        encoder.u64(file.offset).u64(file.size).u64(file.compressed_size);
    }
    encoder.finish()
}

pub(crate) fn decode_bundle(bytes: &[u8]) -> Result<Bundle, WireError> {
    let mut decoder = Decoder::new(bytes);
    let major_version = decoder.u32()?;
    let minor_version = decoder.u32()?;
    let count = decoder.count(29)?;
    let mut files = Vec::with_capacity(count);
    for _ in 0..count {
        let path = decode_name(decoder.bytes()?)?;
        let kind = match decoder.u8()? {
            0 => FileKind::Unknown,
            1 => FileKind::Assembly,
            2 => FileKind::NativeBinary,
            3 => FileKind::DepsJson,
            4 => FileKind::RuntimeConfigJson,
            5 => FileKind::Symbols,
            _ => return Err(WireError::Invalid("a kind of file")),
        };
        let (offset, size) = (decoder.u64()?, decoder.u64()?);
        let compressed_size = decoder.u64()?;
        files.push(BundledFile { path, kind, offset, size, compressed_size });
    }
    decoder.finish()?;
    Ok(Bundle { major_version, minor_version, files })
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_dotnet::PdbId;

    fn method(name: &str) -> Arc<ManagedMethod> {
        Arc::new(ManagedMethod {
            token: 0x0600_0001,
            assembly: (name == "other").then(|| "Other".into()),
            type_token: 0x0200_0002,
            type_name: "Shop.Cart`1".into(),
            method_name: name.into(),
            class_params: vec!["T".into()],
            method_params: Vec::new(),
            signature: vec![0x20, 0, 1],
            class_args: vec!["".into()],
            method_args: Vec::new(),
            around: (name == "other").then(|| "Run".into()),
            stub: false,
            shared: true,
            start_rva: 0x1000,
            size: 7,
            part: CodePart::Funclet,
        })
    }

    fn names() -> ManagedNames {
        let first = method("Add");
        ManagedNames {
            methods: vec![Some(first.clone()), Some(first), None, Some(method("other"))],
            il_offsets: vec![Some(0), Some(7), None, None],
            types: vec![(0x0100_0001, "System.Object".into()), (0x0200_0002, "Shop.Cart`1".into())],
        }
    }

    fn lines() -> ManagedLines {
        let line = |number| Some(("/src/Shop.cs".into(), number));
        ManagedLines { lines: vec![line(3), None, line(u32::MAX)] }
    }

    #[test]
    fn answers_survive_the_wire() {
        let names = names();
        assert_eq!(ManagedNames::decode(&names.encode(), 4), Ok(names.clone()));
        assert_eq!(names.type_name(0x0200_0002).map(|name| &**name), Some("Shop.Cart`1"));
        assert_eq!(names.type_name(7), None);
        assert_eq!(ManagedLines::decode(&lines().encode(), 3), Ok(lines()));
        for code in [
            AssemblyCode::Il,
            AssemblyCode::Precompiled,
            AssemblyCode::Composite,
            AssemblyCode::InComposite { owner: "framework.r2r.dll".into() },
            AssemblyCode::Damaged,
        ] {
            let pdb = PdbReference { id: PdbId([7; 20]), age: 1, path: "/src/Shop.pdb".into() };
            let facts = ManagedFacts {
                assembly: Some("Shop".into()),
                mvid: Some([9; 16]),
                pdb: (code != AssemblyCode::Il).then_some(pdb),
                has_embedded_pdb: true,
                code,
            };
            assert_eq!(ManagedFacts::decode(&facts.encode()), Ok(facts));
        }
    }

    #[test]
    fn answers_to_another_number_of_places_are_refused() {
        let refused = WireError::Invalid("the number of places");
        assert_eq!(ManagedNames::decode(&names().encode(), 3), Err(refused));
        assert_eq!(ManagedLines::decode(&lines().encode(), 4), Err(refused));
    }

    #[test]
    fn hostile_bytes_are_refused_or_harmless() {
        for bytes in [names().encode(), lines().encode()] {
            for length in 0..bytes.len() {
                assert!(ManagedNames::decode(&bytes[..length], 4).is_err());
                assert!(ManagedLines::decode(&bytes[..length], 3).is_err());
            }
            for position in 0..bytes.len() {
                for value in [0, 1, 0x7f, 0xff] {
                    let mut bytes = bytes.clone();
                    bytes[position] = value;
                    let _ = ManagedNames::decode(&bytes, 4);
                    let _ = ManagedLines::decode(&bytes, 3);
                    let _ = ManagedFacts::decode(&bytes);
                    let _ = decode_bundle(&bytes);
                }
            }
        }
        let unsorted = ManagedNames {
            types: vec![(2, "b".into()), (1, "a".into())],
            ..ManagedNames::default()
        };
        let refused = WireError::Invalid("the order of types");
        assert_eq!(ManagedNames::decode(&unsorted.encode(), 0), Err(refused));
    }
}

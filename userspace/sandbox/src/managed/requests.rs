//! Requests about .NET files as bytes. They come from the daemon and are trusted; their decoders
//! check them all the same.

use strata_dotnet::PdbId;

use super::{FilePart, IlPlace, ImagePlace};
use crate::texts::count_of;
use crate::wire::{Decoder, Encoder, WireError};

pub(crate) fn encode_part(encoder: &mut Encoder, part: Option<&FilePart>) {
    match part {
        None => encoder.u8(0),
        Some(part) => {
            encoder.u8(1).u64(part.offset).u64(part.length);
            encoder.u8(part.unpacked.is_some().into()).u64(part.unpacked.unwrap_or(0))
        }
    };
}

pub(crate) fn decode_part(decoder: &mut Decoder<'_>) -> Result<Option<FilePart>, WireError> {
    if !decoder.bool()? {
        return Ok(None);
    }
    let offset = decoder.u64()?;
    let length = decoder.u64()?;
    let packed = decoder.bool()?;
    let unpacked = decoder.u64()?;
    Ok(Some(FilePart { offset, length, unpacked: packed.then_some(unpacked) }))
}

pub(crate) fn encode_facts_request(part: Option<&FilePart>) -> Vec<u8> {
    let mut encoder = Encoder::new();
    encode_part(&mut encoder, part);
    encoder.finish()
}

pub(crate) fn encode_names_request(part: Option<&FilePart>, places: &[ImagePlace]) -> Vec<u8> {
    let mut encoder = Encoder::new();
    encode_part(&mut encoder, part);
    encoder.u32(count_of(places.len()));
    for place in places {
        match place {
            ImagePlace::Offset(offset) => encoder.u8(0).u64(*offset),
            ImagePlace::Address(address) => encoder.u8(1).u64((*address).into()),
        };
    }
    encoder.finish()
}

pub(crate) fn decode_places(decoder: &mut Decoder<'_>) -> Result<Vec<ImagePlace>, WireError> {
    let count = decoder.count(9)?;
    (0..count)
        .map(|_| {
            let is_address = decoder.bool()?;
            let value = decoder.u64()?;
            if !is_address {
                return Ok(ImagePlace::Offset(value));
            }
            let address = u32::try_from(value).map_err(|_| WireError::Invalid("an address"))?;
            Ok(ImagePlace::Address(address))
        })
        .collect()
}

pub(crate) fn encode_lines_request(
    part: Option<&FilePart>,
    pdb: PdbId,
    places: &[IlPlace],
) -> Vec<u8> {
    let mut encoder = Encoder::new();
    encode_part(&mut encoder, part);
    encoder.bytes(&pdb.0).u32(count_of(places.len()));
    for place in places {
        encoder.u32(place.token).u32(place.il_offset);
    }
    encoder.finish()
}

pub(crate) fn decode_il_places(decoder: &mut Decoder<'_>) -> Result<Vec<IlPlace>, WireError> {
    let count = decoder.count(8)?;
    (0..count).map(|_| Ok(IlPlace { token: decoder.u32()?, il_offset: decoder.u32()? })).collect()
}

pub(crate) fn decode_pdb_id(decoder: &mut Decoder<'_>) -> Result<PdbId, WireError> {
    let bytes = decoder.bytes()?;
    bytes.try_into().map(PdbId).map_err(|_| WireError::Invalid("the id of a PDB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_the_wire() {
        let part = FilePart { offset: 5, length: 6, unpacked: Some(7) };
        for part in [None, Some(part), Some(FilePart { unpacked: None, ..part })] {
            let places = [ImagePlace::Offset(u64::MAX), ImagePlace::Address(9)];
            let bytes = encode_names_request(part.as_ref(), &places);
            let mut decoder = Decoder::new(&bytes);
            assert_eq!(decode_part(&mut decoder), Ok(part));
            assert_eq!(decode_places(&mut decoder), Ok(places.to_vec()));
            assert_eq!(decoder.finish(), Ok(()));
            let places = [IlPlace { token: 1, il_offset: 2 }];
            let bytes = encode_lines_request(part.as_ref(), PdbId([3; 20]), &places);
            let mut decoder = Decoder::new(&bytes);
            assert_eq!(decode_part(&mut decoder), Ok(part));
            assert_eq!(decode_pdb_id(&mut decoder), Ok(PdbId([3; 20])));
            assert_eq!(decode_il_places(&mut decoder), Ok(places.to_vec()));
            assert_eq!(decoder.finish(), Ok(()));
        }
    }
}

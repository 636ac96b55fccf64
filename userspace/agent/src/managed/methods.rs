//! The methods of one process, each as long as code of it is kept.
//!
//! A service has tens of thousands of methods, and a few of them are sampled. So the texts of a
//! method lie in one block, as the bridge has encoded them, and are taken apart only to describe it.
//! A method that is gone gives its place to another.

use strata_bridge_protocol::field::{Field, Sink, Source};
use strata_bridge_protocol::record::{MethodKind, MethodRecord, Tier};

use super::code::MethodIndex;
use super::modules::ModuleIndex;

/// A method, without its code.
#[derive(Debug)]
pub struct Method {
    pub function: u64,
    /// Of its first range.
    pub start: u64,
    pub module: ModuleIndex,
    pub type_token: u32,
    pub token: u32,
    /// Of its first range, the number of bytes that the bridge has published, where the others may
    /// change its rules; 0 where they are known or do not.
    pub cut: u16,
    origin: Origin,
    /// A sample has met its code.
    pub is_sampled: bool,
    /// Name and signature, and the others where there are any.
    texts: Box<[u8]>,
}

// There are many.
const _: () = assert!(size_of::<Option<Method>>() == 48);

/// A [`MethodKind`] and a [`Tier`] in one byte; 0: what this version does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Origin(u8);

impl Origin {
    fn new(record: &MethodRecord) -> Self {
        let kind = record.kind().map_or(0, |kind| kind as u8);
        Self(kind & 15 | (record.tier() as u8) << 4)
    }
}

/// The texts of a method.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MethodTexts {
    pub rejit: u64,
    pub name: String,
    pub generic_parameters: Vec<String>,
    pub signature: Vec<u8>,
    pub class_arguments: Vec<String>,
    pub method_arguments: Vec<String>,
}

impl Method {
    pub fn new(record: &MethodRecord, module: ModuleIndex) -> Self {
        let mut texts = Vec::with_capacity(record.name.len() + record.signature.len() + 4);
        put(&record.name, &mut texts);
        put(&record.signature, &mut texts);
        let lists = [&record.generic_parameters, &record.class_arguments, &record.method_arguments];
        if record.rejit != 0 || lists.iter().any(|list| !list.is_empty()) {
            lists.into_iter().for_each(|list| put(list, &mut texts));
            put(&record.rejit, &mut texts);
        }
        Self {
            function: record.function,
            start: record.ranges.first().map_or(0, |range| range.start),
            module,
            type_token: record.type_token,
            token: record.token,
            cut: 0,
            origin: Origin::new(record),
            is_sampled: false,
            texts: texts.into(),
        }
    }

    pub fn kind(&self) -> Option<MethodKind> {
        MethodKind::from_byte(self.origin.0 & 15)
    }

    /// The tier; what this version does not know is unknown.
    pub fn tier(&self) -> Tier {
        Tier::from_byte(self.origin.0 >> 4).unwrap_or(Tier::Unknown)
    }

    pub fn texts(&self) -> MethodTexts {
        let mut source = Source::new(&self.texts);
        // What was written in this order is read in it; what is not there is empty.
        MethodTexts {
            name: take(&mut source),
            signature: take(&mut source),
            generic_parameters: take(&mut source),
            class_arguments: take(&mut source),
            method_arguments: take(&mut source),
            rejit: take(&mut source),
        }
    }

    /// Whether a record describes the same method again: an answer, which has less to say, or the
    /// record itself, written once more.
    pub fn is_described_by(&self, again: &Self) -> bool {
        let is_answer = again.kind() == Some(MethodKind::Resolved);
        let tokens = |of: &Self| (of.module, of.type_token, of.token, of.origin);
        self.function == again.function
            && self.start == again.start
            && (is_answer || tokens(self) == tokens(again) && self.texts == again.texts)
    }

    fn bytes(&self) -> usize {
        // The allocator's part of a block.
        const BLOCK: usize = 16;
        size_of::<Option<Self>>() + self.texts.len() + BLOCK
    }
}

fn put<T: Field>(value: &T, sink: &mut impl Sink) {
    T::put(value.borrow(), sink);
}

fn take<T: Field + Default>(source: &mut Source<'_>) -> T {
    T::take(source).unwrap_or_default()
}

#[derive(Default)]
pub struct Methods {
    places: Vec<Option<Method>>,
    free: Vec<u32>,
    bytes: usize,
}

impl Methods {
    pub fn add(&mut self, method: Method) -> MethodIndex {
        self.bytes += method.bytes();
        match self.free.pop() {
            Some(index) => {
                if let Some(place) = self.places.get_mut(index as usize) {
                    *place = Some(method);
                }
                MethodIndex(index)
            }
            None => {
                if self.places.len() == self.places.capacity() {
                    // Not twice as many at once.
                    self.places.reserve_exact(self.places.len() / 8 + 64);
                }
                self.places.push(Some(method));
                MethodIndex((self.places.len() - 1) as u32)
            }
        }
    }

    pub fn remove(&mut self, index: MethodIndex) -> Option<Method> {
        let method = self.places.get_mut(index.0 as usize)?.take()?;
        self.bytes -= method.bytes();
        self.free.push(index.0);
        Some(method)
    }

    pub fn get(&self, index: MethodIndex) -> Option<&Method> {
        self.places.get(index.0 as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, index: MethodIndex) -> Option<&mut Method> {
        self.places.get_mut(index.0 as usize)?.as_mut()
    }

    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes + self.free.len() * size_of::<Option<Method>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> MethodRecord {
        MethodRecord {
            function: 7,
            rejit: 3,
            name: "Run".into(),
            generic_parameters: vec!["T".into(), "TKey".into()],
            signature: vec![0x20, 1, 1, 0x1c],
            class_arguments: vec!["System.Int32".into()],
            method_arguments: vec![String::new()],
            kind: MethodKind::Dynamic as u8,
            tier: Tier::Osr as u8,
            ..MethodRecord::default()
        }
    }

    #[test]
    fn a_methods_texts_are_those_of_its_record() {
        let (record, mut methods) = (record(), Methods::default());
        let index = methods.add(Method::new(&record, ModuleIndex::NONE));
        let method = methods.get(index).unwrap();
        assert_eq!((method.kind(), method.tier()), (Some(MethodKind::Dynamic), Tier::Osr));
        let texts = method.texts();
        assert_eq!(texts.rejit, record.rejit);
        assert_eq!((texts.name, texts.signature), (record.name, record.signature));
        assert_eq!(texts.generic_parameters, record.generic_parameters);
        assert_eq!(texts.class_arguments, record.class_arguments);
        assert_eq!(texts.method_arguments, record.method_arguments);
    }

    #[test]
    fn the_place_of_a_method_that_is_gone_is_the_next_ones() {
        let mut methods = Methods::default();
        let (first, second) = (record(), MethodRecord { name: "A longer name".into(), ..record() });
        let kept = methods.add(Method::new(&second, ModuleIndex::NONE));
        let before = methods.bytes();
        for _ in 0..1000 {
            let index = methods.add(Method::new(&first, ModuleIndex::NONE));
            assert!(methods.remove(index).is_some() && methods.remove(index).is_none());
        }
        assert_eq!(methods.len(), 1);
        assert!(methods.bytes() <= before + size_of::<Option<Method>>());
        assert_eq!(methods.get(kept).map(|method| method.texts().name), Some(second.name));
    }
}

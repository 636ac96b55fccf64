//! The methods of one process, each as long as code of it is kept.
//!
//! A service has tens of thousands of methods, and a few of them are sampled. So the texts of a
//! method lie in one block, as the bridge has encoded them, and are taken apart only to describe it.
//! A method that is gone gives its place to another.

use strata_bridge_protocol::field::{Field, Source};
use strata_bridge_protocol::record::{MethodKind, MethodView, Tier};

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
    pub published_code_bytes: u16,
    origin: Origin,
    /// A sample has met its code.
    pub is_sampled: bool,
    /// Name, generic parameters and signature, as in its record, and the others where there are any.
    texts: Box<[u8]>,
}

// There are many.
const _: () = assert!(size_of::<Option<Method>>() == 48);

/// A [`MethodKind`] and a [`Tier`] in one byte; 0: what this version does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Origin(u8);

impl Origin {
    fn new(record: &MethodView<'_>) -> Self {
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
    pub fn new(record: &MethodView<'_>, module: ModuleIndex) -> Self {
        let has_more = record.rejit != 0 || record.arguments != MethodView::NO_ARGUMENTS;
        let rejit = record.rejit.to_le_bytes();
        let (arguments, rejit): (&[u8], &[u8]) =
            if has_more { (record.arguments, &rejit) } else { (&[], &[]) };
        let texts = [record.texts, arguments, rejit].concat();
        Self {
            function: record.function,
            start: record.ranges.iter().next().map_or(0, |range| range.start),
            module,
            type_token: record.type_token,
            token: record.token,
            published_code_bytes: 0,
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

    /// The texts as they are kept.
    pub fn encoded_texts(&self) -> &[u8] {
        &self.texts
    }

    pub fn texts(&self) -> MethodTexts {
        let mut source = Source::new(&self.texts);
        // In the order of the record; what is not there is empty.
        MethodTexts {
            name: take(&mut source),
            generic_parameters: take(&mut source),
            signature: take(&mut source),
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

fn take<T: Field + Default>(source: &mut Source<'_>) -> T {
    T::take(source).unwrap_or_default()
}

/// How many methods lie in a block.
const BLOCK: usize = 64;

#[derive(Default)]
pub struct Methods {
    /// In blocks, so that none is copied when there are more. All but the last are full.
    blocks: Vec<Vec<Option<Method>>>,
    /// How many places there are.
    used: usize,
    free: Vec<u32>,
    bytes: usize,
}

impl Methods {
    pub fn add(&mut self, method: Method) -> MethodIndex {
        self.bytes += method.bytes();
        if let Some(index) = self.free.pop().map(MethodIndex) {
            if let Some(place) = self.place(index) {
                *place = Some(method);
            }
            return index;
        }
        match self.blocks.last_mut() {
            Some(block) if block.len() < BLOCK => block.push(Some(method)),
            _ => {
                let mut block = Vec::with_capacity(BLOCK);
                block.push(Some(method));
                self.blocks.push(block);
            }
        }
        self.used += 1;
        MethodIndex((self.used - 1) as u32)
    }

    pub fn remove(&mut self, index: MethodIndex) -> Option<Method> {
        let method = self.place(index)?.take()?;
        self.bytes -= method.bytes();
        self.free.push(index.0);
        Some(method)
    }

    fn place(&mut self, index: MethodIndex) -> Option<&mut Option<Method>> {
        let index = index.0 as usize;
        self.blocks.get_mut(index / BLOCK)?.get_mut(index % BLOCK)
    }

    pub fn get(&self, index: MethodIndex) -> Option<&Method> {
        let index = index.0 as usize;
        self.blocks.get(index / BLOCK)?.get(index % BLOCK)?.as_ref()
    }

    pub fn get_mut(&mut self, index: MethodIndex) -> Option<&mut Method> {
        self.place(index)?.as_mut()
    }

    pub fn len(&self) -> usize {
        self.used - self.free.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes + self.free.len() * size_of::<Option<Method>>()
    }
}

#[cfg(test)]
mod tests {
    use strata_bridge_protocol::record::{Encode, MethodRecord};

    use super::*;

    fn method(record: &MethodRecord) -> Method {
        let mut fields = Vec::new();
        record.encode(&mut fields);
        Method::new(&MethodView::of(&fields).unwrap(), ModuleIndex::NONE)
    }

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
        let index = methods.add(method(&record));
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
    fn what_a_method_has_not_takes_no_memory() {
        let mut record = MethodRecord { name: "Run".into(), ..MethodRecord::default() };
        assert_eq!(method(&record).texts.len(), 2 + "Run".len() + 2 + 2);
        record.method_arguments = vec![String::new(); 2];
        assert_eq!(method(&record).texts().method_arguments, record.method_arguments);
        record = MethodRecord { rejit: 1, ..MethodRecord::default() };
        assert_eq!(method(&record).texts().rejit, 1);
    }

    #[test]
    fn the_place_of_a_method_that_is_gone_is_the_next_ones() {
        let mut methods = Methods::default();
        let (first, second) = (record(), MethodRecord { name: "A longer name".into(), ..record() });
        let kept = methods.add(method(&second));
        let before = methods.bytes();
        for _ in 0..1000 {
            let index = methods.add(method(&first));
            assert!(methods.remove(index).is_some() && methods.remove(index).is_none());
        }
        assert_eq!(methods.len(), 1);
        assert!(methods.bytes() <= before + size_of::<Option<Method>>());
        assert_eq!(methods.get(kept).map(|method| method.texts().name), Some(second.name));
    }
}

//! Reads protobuf by its wire format alone (protobuf.dev/programming-guides/encoding): no schema,
//! none of the code under test.

/// The fields of a message, in order.
#[derive(Debug)]
pub struct Message(Vec<(u64, Field)>);

#[derive(Debug)]
enum Field {
    Number(u64),
    Bytes(Vec<u8>),
}

impl Message {
    pub fn read(mut bytes: &[u8]) -> Self {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let key = number(&mut bytes);
            let field = match key & 7 {
                0 => Field::Number(number(&mut bytes)),
                1 => Field::Number(u64::from_le_bytes(take(&mut bytes, 8).try_into().unwrap())),
                2 => {
                    let length = number(&mut bytes);
                    Field::Bytes(take(&mut bytes, length as usize).to_vec())
                }
                other => panic!("wire type {other}"),
            };
            fields.push((key >> 3, field));
        }
        Self(fields)
    }

    pub fn all_bytes(&self, of: u64) -> Vec<&[u8]> {
        let fields = self.0.iter().filter(|(number, _)| *number == of);
        fields
            .map(|(_, field)| match field {
                Field::Bytes(bytes) => bytes.as_slice(),
                Field::Number(_) => panic!("field {of} is a number"),
            })
            .collect()
    }

    pub fn all(&self, of: u64) -> Vec<Message> {
        self.all_bytes(of).into_iter().map(Message::read).collect()
    }

    pub fn one(&self, of: u64) -> Message {
        let mut all = self.all(of);
        assert_eq!(all.len(), 1, "field {of} of {self:?}");
        all.remove(0)
    }

    pub fn texts(&self, of: u64) -> Vec<String> {
        self.all_bytes(of)
            .into_iter()
            .map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
            .collect()
    }

    pub fn text(&self, of: u64) -> String {
        self.texts(of).pop().unwrap_or_default()
    }

    /// The number, 0 if it is missing.
    pub fn number(&self, of: u64) -> i64 {
        self.numbers(of).pop().unwrap_or(0)
    }

    /// Numbers, packed or not.
    pub fn numbers(&self, of: u64) -> Vec<i64> {
        let mut numbers = Vec::new();
        for (_, field) in self.0.iter().filter(|(number, _)| *number == of) {
            match field {
                Field::Number(value) => numbers.push(*value as i64),
                Field::Bytes(bytes) => {
                    let mut rest = bytes.as_slice();
                    while !rest.is_empty() {
                        numbers.push(number(&mut rest) as i64);
                    }
                }
            }
        }
        numbers
    }
}

fn take<'b>(bytes: &mut &'b [u8], length: usize) -> &'b [u8] {
    let (taken, rest) = bytes.split_at(length);
    *bytes = rest;
    taken
}

fn number(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return value;
        }
    }
    panic!("a number is too long");
}

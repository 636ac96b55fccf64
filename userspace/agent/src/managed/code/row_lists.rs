//! The lists of rules by offset that a process's code is unwound by: each distinct list once.
//!
//! Code comes and goes, so lists are counted by their uses, and one without a use gives its place
//! to another.

use std::sync::Arc;

use crate::hash::HashMap;

/// The number of a rule, by offset from the start of the code.
pub type Row = (u32, u16);
type Rows = Arc<[Row]>;

/// The position of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListNumber(u32);

struct List {
    rows: Rows,
    uses: u32,
}

#[derive(Default)]
pub struct RowLists {
    lists: Vec<List>,
    free: Vec<u32>,
    numbers: HashMap<Rows, u32>,
    row_bytes: usize,
}

/// What a list costs besides its rows.
const OVERHEAD: usize = size_of::<List>() + 2 * size_of::<(Rows, u32)>() + 16;

impl RowLists {
    /// A list, used once more.
    pub fn take(&mut self, rows: &[Row]) -> ListNumber {
        if let Some(&known) = self.numbers.get(rows) {
            self.use_again(ListNumber(known));
            return ListNumber(known);
        }
        let list = List { rows: rows.into(), uses: 1 };
        self.row_bytes += size_of_val(rows);
        let rows = list.rows.clone();
        let number = match self.free.pop() {
            Some(number) => {
                if let Some(place) = self.lists.get_mut(number as usize) {
                    *place = list;
                }
                number
            }
            None => {
                self.lists.push(list);
                (self.lists.len() - 1) as u32
            }
        };
        self.numbers.insert(rows, number);
        ListNumber(number)
    }

    /// A further use of a list that has one.
    pub fn use_again(&mut self, number: ListNumber) {
        if let Some(list) = self.lists.get_mut(number.0 as usize) {
            list.uses += 1;
        }
    }

    /// The end of one use.
    pub fn release(&mut self, number: ListNumber) {
        let Some(list) = self.lists.get_mut(number.0 as usize) else { return };
        list.uses -= 1;
        if list.uses == 0 {
            let rows = std::mem::take(&mut list.rows);
            self.row_bytes -= size_of_val(&*rows);
            self.numbers.remove(&rows);
            self.free.push(number.0);
        }
    }

    pub fn get(&self, number: ListNumber) -> Option<&[Row]> {
        self.lists.get(number.0 as usize).map(|list| &*list.rows)
    }

    pub fn bytes(&self) -> usize {
        self.row_bytes + self.lists.len() * OVERHEAD
    }

    #[cfg(test)]
    pub fn all(&self) -> impl Iterator<Item = &[Row]> {
        self.numbers.keys().map(|rows| &**rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_kept_once_and_as_long_as_it_is_used() {
        let mut lists = RowLists::default();
        let (first, second) = ([(0, 1), (4, 2)], [(0, 1)]);
        let number = lists.take(&first);
        let once = lists.bytes();
        assert_eq!(lists.take(&first), number);
        assert_eq!(lists.bytes(), once);
        lists.release(number);
        assert_eq!(lists.get(number), Some(&first[..]));
        lists.release(number);
        assert_eq!(lists.all().count(), 0);
        // Its place is used again.
        assert_eq!(lists.take(&second), number);
        assert_eq!(lists.get(number), Some(&second[..]));
        assert!(lists.bytes() <= once);
    }
}

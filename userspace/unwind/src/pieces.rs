//! Rows and their index, divided into pieces that fit the kernel's segments.
//!
//! Invariant: every piece keeps the contract of [`strata_abi::tables`]: row 0 lies at the
//! piece's very start, rows ascend, and the index has one entry more than there are pages.

use strata_abi::tables::{self, MAX_PIECE_PAGES, MAX_PIECE_ROWS, PAGE_SHIFT};

use crate::rules;
use crate::table::Piece;

/// A page has this many addresses, so at most this many rows.
const PAGE_ROWS: usize = 1 << PAGE_SHIFT;
/// A stretch without rules longer than this many pages is left out.
const GAP_PAGES: u64 = 1024;

pub(crate) struct PieceBuilder {
    pieces: Vec<Piece>,
    /// The piece being built; its `pages` are known when it ends.
    index: Vec<u32>,
    rows: Vec<u32>,
    first_page: u64,
    last_pc: u64,
    last_rule: u16,
    total_rows: u64,
    max_rows: u64,
    pub truncated: bool,
}

impl PieceBuilder {
    pub fn new(max_rows: u32) -> Self {
        Self {
            pieces: Vec::new(),
            index: Vec::new(),
            rows: Vec::new(),
            first_page: 0,
            last_pc: 0,
            last_rule: rules::NONE,
            total_rows: 0,
            max_rows: u64::from(max_rows),
            truncated: false,
        }
    }

    /// From `pc` on this rule holds. Calls come in ascending order of `pc`.
    #[inline]
    pub fn rule_from(&mut self, pc: u64, rule: u16) {
        if rule == self.last_rule || pc < self.last_pc || self.truncated {
            return;
        }
        self.change(pc, rule);
    }

    fn change(&mut self, pc: u64, rule: u16) {
        let page = pc >> PAGE_SHIFT;
        if self.rows.is_empty() {
            self.start(page);
        } else {
            let last_page = self.last_pc >> PAGE_SHIFT;
            if self.last_rule == rules::NONE && page - last_page > GAP_PAGES {
                self.end(last_page + 1);
                self.start(page);
            } else if page != last_page
                && (self.rows.len() > MAX_PIECE_ROWS as usize - PAGE_ROWS - 1
                    || page - self.first_page >= u64::from(MAX_PIECE_PAGES))
            {
                self.end_full(page);
            }
        }
        if pc == self.last_pc && !self.rows.is_empty() {
            // The row before holds for nothing.
            if let Some(row) = self.rows.last_mut() {
                *row = tables::row(pc, rule);
            }
        } else {
            if self.total_rows >= self.max_rows {
                self.truncated = true;
                if let Some(row) = self.rows.last_mut() {
                    *row = tables::row(self.last_pc, rules::NONE);
                }
                self.last_rule = rules::NONE;
                return;
            }
            self.index_up_to(page);
            self.rows.push(tables::row(pc, rule));
            self.total_rows += 1;
        }
        self.last_pc = pc;
        self.last_rule = rule;
    }

    /// Ends a piece that is full before `page`. One rule may hold over more pages than a
    /// piece has, so this may need several.
    fn end_full(&mut self, page: u64) {
        let rule = self.last_rule;
        let most = self.first_page + u64::from(MAX_PIECE_PAGES);
        let last_page = self.last_pc >> PAGE_SHIFT;
        let next = page.min(most).max(last_page + 1);
        self.end(next);
        self.start_with(next, rule);
        // Code in one file lies within segments the file has bytes for; a rule that holds over
        // more than two pieces' worth of pages is no code.
        if page - next >= u64::from(MAX_PIECE_PAGES) {
            self.end(next + 1);
            self.start(page);
        }
    }

    fn start(&mut self, page: u64) {
        self.start_with(page, rules::NONE);
    }

    fn start_with(&mut self, page: u64, rule: u16) {
        self.first_page = page;
        self.index.clear();
        self.rows.clear();
        self.index.push(0);
        self.rows.push(tables::row(page << PAGE_SHIFT, rule));
        self.total_rows += 1;
        self.last_pc = page << PAGE_SHIFT;
        self.last_rule = rule;
    }

    /// Index entries of all pages up to and including `page`; the next row is its first.
    fn index_up_to(&mut self, page: u64) {
        let wanted = (page - self.first_page) as usize + 1;
        if self.index.len() < wanted {
            self.index.resize(wanted, self.rows.len() as u32);
        }
    }

    fn end(&mut self, end_page: u64) {
        self.index_up_to(end_page);
        self.pieces.push(Piece {
            first_page: self.first_page,
            pages: (end_page - self.first_page) as u32,
            index: self.index.as_slice().into(),
            rows: self.rows.as_slice().into(),
        });
    }

    pub fn finish(mut self) -> Vec<Piece> {
        if !self.rows.is_empty() {
            self.end((self.last_pc >> PAGE_SHIFT) + 1);
        }
        self.pieces
    }
}

//! Two functions that the static libelf of elfutils 0.192 (Debian 13) calls and does not contain.
//!
//! They begin and end the tree of an ELF file's raw chunks (libelf/elf_begin.c, elf_end.c). Only
//! `elf_getdata_rawchunk` uses the tree, and libbpf does not: linking it would fail for
//! `eu_tsearch`, which is not here. So the tree stays as it was allocated, of zeros.

use std::ffi::c_void;

#[unsafe(no_mangle)]
extern "C" fn eu_search_tree_init(_tree: *mut c_void) {}

#[unsafe(no_mangle)]
extern "C" fn eu_search_tree_fini(_tree: *mut c_void, _free_node: *const c_void) {}

//! Reads the running kernel's type information (BTF): where a field lies in a struct, whether a
//! tracepoint exists.
//!
//! Kernel structs differ between versions and configurations. The BPF programs read their field
//! offsets from globals, which the loader sets from here before it loads them.
//!
//! Invariant: the type information (5–10 MB) is held only by [`KernelTypes`]: query everything,
//! then drop it.

use std::ffi::OsStr;

use libbpf_rs::btf::types::{Composite, MemberAttr};
use libbpf_rs::btf::{Btf, BtfType, TypeId};

/// Where the kernel shows its type information.
pub const PATH: &str = "/sys/kernel/btf/vmlinux";

/// Anonymous members nest this deep at most in what is searched.
const MAX_NESTING: u32 = 8;

#[derive(Debug, thiserror::Error)]
pub enum TypeError {
    #[error(
        "the kernel's type information ({PATH}) cannot be read: strata needs a kernel built with \
         CONFIG_DEBUG_INFO_BTF=y"
    )]
    Unreadable(#[source] libbpf_rs::Error),
    #[error("this kernel has no `struct {0}`")]
    NoStruct(String),
    #[error("this kernel's `struct {structure}` has no field `{field}`")]
    NoField { structure: String, field: String },
    #[error("field `{field}` of `struct {structure}` does not lie at a whole byte")]
    BitField { structure: String, field: String },
}

/// The kernel's types.
pub struct KernelTypes {
    btf: Btf<'static>,
}

impl KernelTypes {
    pub fn read() -> Result<Self, TypeError> {
        // The library writes its complaints to standard error by itself; they come as errors too.
        libbpf_rs::set_print(None);
        Ok(Self { btf: Btf::from_vmlinux().map_err(TypeError::Unreadable)? })
    }

    /// Bytes from the start of `struct structure` to `field`. A path such as `mm.pgd` goes on into
    /// the struct that is the field's type; members without a name are looked through.
    pub fn offset_of(&self, structure: &str, field: &str) -> Result<u32, TypeError> {
        let mut composite =
            self.structure(structure).ok_or_else(|| TypeError::NoStruct(structure.to_owned()))?;
        let no_field =
            || TypeError::NoField { structure: structure.to_owned(), field: field.to_owned() };
        let mut bits = 0u32;
        let mut steps = field.split('.').peekable();
        while let Some(step) = steps.next() {
            let (offset, member) =
                self.member(composite, step, MAX_NESTING).ok_or_else(no_field)?;
            bits = bits.saturating_add(offset);
            if steps.peek().is_some() {
                composite = self.composite(member).ok_or_else(no_field)?;
            }
        }
        if !bits.is_multiple_of(8) {
            return Err(TypeError::BitField {
                structure: structure.to_owned(),
                field: field.to_owned(),
            });
        }
        Ok(bits / 8)
    }

    /// Whether programs can be attached to this tracepoint without tracefs.
    pub fn has_tracepoint(&self, name: &str) -> bool {
        self.btf.type_by_name::<BtfType>(&format!("btf_trace_{name}")).is_some()
    }

    /// How many types there are.
    pub fn count(&self) -> usize {
        self.btf.len()
    }

    fn structure(&self, name: &str) -> Option<Composite<'_>> {
        // The first type of that name may be a forward declaration or a typedef.
        self.btf.type_by_name::<Composite>(name).or_else(|| {
            (1..u32::try_from(self.btf.len()).ok()?)
                .filter_map(|id| self.btf.type_by_id::<BtfType>(TypeId::from(id)))
                .filter(|found| found.name() == Some(OsStr::new(name)))
                .find_map(|found| Composite::try_from(found).ok())
        })
    }

    fn composite(&self, id: TypeId) -> Option<Composite<'_>> {
        let found = self.btf.type_by_id::<BtfType>(id)?;
        Composite::try_from(found.skip_mods_and_typedefs()).ok()
    }

    /// Bits from the start of `composite` to the member of that name, and the member's type.
    fn member(&self, composite: Composite<'_>, name: &str, depth: u32) -> Option<(u32, TypeId)> {
        for member in composite.iter() {
            let MemberAttr::Normal { offset } = member.attr else { continue };
            match member.name {
                Some(found) if found == OsStr::new(name) => return Some((offset, member.ty)),
                Some(_) => {}
                None => {
                    let inner = depth
                        .checked_sub(1)
                        .and_then(|depth| self.member(self.composite(member.ty)?, name, depth));
                    if let Some((inner, found)) = inner {
                        return Some((offset.checked_add(inner)?, found));
                    }
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types() -> KernelTypes {
        KernelTypes::read().expect("this kernel has type information")
    }

    #[test]
    fn fields_are_found_also_behind_members_without_a_name() {
        let types = types();
        let task = |field| types.offset_of("task_struct", field);
        assert!(task("mm").expect("mm") > 0);
        assert!(task("pid").expect("pid") + 4 == task("tgid").expect("tgid"));
        // `struct mm_struct` is one anonymous struct with everything in it.
        assert!(types.offset_of("mm_struct", "pgd").expect("pgd") > 0);
        assert_eq!(types.offset_of("file", "f_path.dentry").expect("dentry") % 8, 0);
    }

    #[test]
    fn what_is_not_there_is_named() {
        let types = types();
        let error = types.offset_of("task_struct", "no_such_field").expect_err("no field");
        assert!(error.to_string().contains("no_such_field"));
        let error = types.offset_of("no_such_struct", "mm").expect_err("no struct");
        assert!(error.to_string().contains("no_such_struct"));
    }

    #[test]
    fn a_bit_field_is_not_found_at_a_byte() {
        assert!(types().offset_of("task_struct", "sched_reset_on_fork").is_err());
    }

    #[test]
    fn the_exec_tracepoint_is_known_and_an_invented_one_is_not() {
        assert!(types().has_tracepoint("sched_process_exec"));
        assert!(!types().has_tracepoint("strata_invented_this"));
    }
}

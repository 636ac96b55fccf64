//! Names addresses of the kernel, on request (`BPF_PROG_TEST_RUN`): attached to nothing.
//!
//! The kernel looks a name up in a microsecond, while writing all of `/proc/kallsyms` takes it tens
//! of milliseconds.

use aya_ebpf::helpers::generated::bpf_snprintf;
use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;

use crate::maps::KERNEL_NAME;

/// A symbol without offset, and its module; the address itself where there is no symbol.
static FORMAT: [u8; 4] = *b"%ps\0";

/// Writes the name of the address that is the first argument.
#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub fn name_kernel_address(context: RawTracePointContext) -> i32 {
    let address: u64 = context.arg(0);
    let Some(name) = KERNEL_NAME.get_ptr_mut(0) else { return 0 };
    let values = [address];
    // SAFETY: the name's bytes are a value of the map, of which there is one; the format is a constant
    // that the verifier has checked against the number of values.
    unsafe {
        // Nothing is written where the helper fails.
        (*name)[0] = 0;
        bpf_snprintf(
            name.cast(),
            size_of::<crate::maps::Name>() as u32,
            FORMAT.as_ptr().cast(),
            values.as_ptr().cast_mut().cast(),
            size_of_val(&values) as u32,
        );
    }
    0
}

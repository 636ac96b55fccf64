/* The C half: a leaf of its own, and a call back into Go. */
#include "_cgo_export.h"
#include "../../c/burn.h"

NOINLINE static uint64_t cgo_c_leaf(uint64_t units) { return burn_units(units); }

NOINLINE static uint64_t cgo_c_middle(uint64_t units) {
    /* RBP is a register like any other here: the Go caller's is only on the stack. */
    __asm__ volatile("movl $8, %%ebp" ::: "rbp");
    uint64_t below = cgo_c_leaf(units);
    KEEP_FRAME(below);
    return below + 1;
}

uint64_t cgo_c_entry(uint64_t units) {
    uint64_t below = cgo_c_middle(units);
    KEEP_FRAME(below);
    return below + goCallback(units);
}

int cgo_c_wait(uint64_t milliseconds) {
    __asm__ volatile("movl $8, %%ebp" ::: "rbp");
    int waited = usleep((useconds_t)(milliseconds * 1000));
    KEEP_FRAME(waited);
    return waited;
}

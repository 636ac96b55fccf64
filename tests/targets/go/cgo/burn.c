/* The C half: a leaf of its own, and a call back into Go. */
#include "_cgo_export.h"
#include "../../c/burn.h"

NOINLINE static uint64_t cgo_c_leaf(uint64_t units) { return burn_units(units); }

NOINLINE static uint64_t cgo_c_middle(uint64_t units) {
    uint64_t below = cgo_c_leaf(units);
    KEEP_FRAME(below);
    return below + 1;
}

uint64_t cgo_c_entry(uint64_t units) {
    uint64_t below = cgo_c_middle(units);
    KEEP_FRAME(below);
    return below + goCallback(units);
}

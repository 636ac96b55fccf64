/* Three leaves with 50, 30 and 20 % of the work, below a recursion and libc's qsort.
 * usage: shares [seconds] */
#include "burn.h"

NOINLINE uint64_t burn_fifty(uint64_t units) { return burn_units(units); }
NOINLINE uint64_t burn_thirty(uint64_t units) { return burn_units(units) ^ 1; }
NOINLINE uint64_t burn_twenty(uint64_t units) { return burn_units(units) ^ 2; }

static uint64_t sink;

/* Called by qsort, so each leaf has libc frames below it. */
NOINLINE static int compare_and_burn(const void *left, const void *right) {
    switch (next_turn()) {
    case 0: sink += burn_fifty(2); break;
    case 1: sink += burn_thirty(2); break;
    default: sink += burn_twenty(2); break;
    }
    int a = *(const int *)left, b = *(const int *)right;
    return (a > b) - (a < b);
}

NOINLINE static uint64_t descend(int depth) {
    if (depth == 0) {
        int numbers[64];
        for (int i = 0; i < 64; i++) numbers[i] = (i * 37) % 64;
        qsort(numbers, 64, sizeof numbers[0], compare_and_burn);
        return (uint64_t)numbers[0];
    }
    uint64_t below = descend(depth - 1);
    KEEP_FRAME(below);
    return below + 1;
}

int main(int argc, char **argv) {
    double end = target_now() + seconds_argument(argc, argv, 1, 60);
    while (target_now() < end) sink += descend(7);
    report_cpu("shares");
    return sink == 42;
}

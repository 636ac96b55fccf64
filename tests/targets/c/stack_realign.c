/* Frames realigned for vectors, with alloca: the compiler describes them by a CFA expression
 * through a saved argument pointer (DRAP). usage: stack_realign [seconds] */
#include "burn.h"
#include <alloca.h>
#include <stdarg.h>
#include <string.h>

typedef struct {
    double lanes[8] __attribute__((aligned(64)));
} wide;

NOINLINE static uint64_t realign_leaf(wide *w) { return burn_units(4) + (uint64_t)w->lanes[3]; }

NOINLINE static uint64_t realign_alloca(int depth, size_t length, ...) {
    wide w;
    char *bytes = alloca(length);
    va_list list;
    va_start(list, length);
    memset(bytes, depth, length);
    for (int i = 0; i < 8; i++) w.lanes[i] = depth + i;
    uint64_t below = depth > 0 ? realign_alloca(depth - 1, length + 17, depth, 1.0) : realign_leaf(&w);
    KEEP_FRAME(below);
    below += (uint64_t)va_arg(list, int);
    va_end(list);
    return below + (uint64_t)w.lanes[7] + (uint64_t)bytes[length / 2];
}

NOINLINE static uint64_t realign_stack_arguments(long a, long b, long c, long d, long e, long f, wide by_value, long g) {
    wide w = by_value;
    w.lanes[(a + g) & 7] += (double)(b + c + d + e + f);
    uint64_t below = realign_alloca(6, (size_t)(g & 255) + 1, 1, 2.0) + realign_leaf(&w);
    KEEP_FRAME(below);
    return below + (uint64_t)w.lanes[1];
}

int main(int argc, char **argv) {
    double end = target_now() + seconds_argument(argc, argv, 1, 60);
    uint64_t sum = 0;
    wide w;
    memset(&w, 0, sizeof w);
    for (long turn = 0; target_now() < end; turn++) sum += realign_stack_arguments(1, 2, 3, 4, 5, 6, w, turn);
    report_cpu("stack_realign");
    return sum == 42;
}

/* Burns CPU time below a random one of 2^DEPTH call paths, another one every millisecond.
 * usage: many_stacks [seconds] [depth] */
#include "burn.h"

static uint64_t state = 88172645463325252UL;

static uint64_t random_word(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static uint64_t descend(uint64_t path, int depth);

NOINLINE static uint64_t left(uint64_t path, int depth) {
    uint64_t below = descend(path >> 1, depth - 1);
    KEEP_FRAME(below);
    return below + 1;
}

NOINLINE static uint64_t right(uint64_t path, int depth) {
    uint64_t below = descend(path >> 1, depth - 1);
    KEEP_FRAME(below);
    return below + 2;
}

NOINLINE static uint64_t descend(uint64_t path, int depth) {
    if (depth == 0) {
        double until = target_now() + 0.001;
        uint64_t sum = 0;
        while (target_now() < until) sum += burn_units(1);
        return sum;
    }
    uint64_t below = path & 1 ? left(path, depth) : right(path, depth);
    KEEP_FRAME(below);
    return below;
}

int main(int argc, char **argv) {
    double end = target_now() + seconds_argument(argc, argv, 1, 60);
    int depth = (int)seconds_argument(argc, argv, 2, 20);
    uint64_t sink = 0;
    while (target_now() < end) sink += descend(random_word(), depth);
    report_cpu("many_stacks");
    return sink == 42;
}

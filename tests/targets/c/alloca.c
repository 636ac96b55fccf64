/* Stack frames whose size is only known while they run. usage: alloca [seconds] */
#include "burn.h"
#include <alloca.h>
#include <string.h>

NOINLINE static uint64_t alloca_leaf(char *bytes, size_t length) {
    bytes[length - 1] = 1;
    return burn_units(4) + (uint64_t)bytes[0];
}

NOINLINE static uint64_t variable_array(size_t length) {
    char bytes[length];
    memset(bytes, 1, length);
    uint64_t below = alloca_leaf(bytes, length);
    KEEP_FRAME(below);
    return below + (uint64_t)bytes[length / 2];
}

NOINLINE static uint64_t alloca_descend(int depth, size_t length) {
    char *bytes = alloca(length);
    memset(bytes, depth, length);
    uint64_t below = depth > 0 ? alloca_descend(depth - 1, length * 3 % 997 + 1) : variable_array(length + 7);
    KEEP_FRAME(below);
    return below + (uint64_t)bytes[length - 1];
}

int main(int argc, char **argv) {
    double end = target_now() + seconds_argument(argc, argv, 1, 60);
    uint64_t sum = 0;
    for (size_t length = 1; target_now() < end; length = length % 5000 + 13) sum += alloca_descend(12, length);
    report_cpu("alloca");
    return sum == 42;
}

/* Calls tiny functions of a shared library through the PLT, so that a good part of the samples hit
 * PLT stubs. usage: plt [seconds] */
#include "burn.h"

uint64_t plt_a(uint64_t), plt_b(uint64_t), plt_c(uint64_t), plt_d(uint64_t);

NOINLINE static uint64_t call_through_plt(uint64_t x) {
    for (int i = 0; i < 100000; i++) x = plt_a(plt_b(plt_c(plt_d(x))));
    return x;
}

NOINLINE static uint64_t call_often(uint64_t x) {
    uint64_t below = call_through_plt(x);
    KEEP_FRAME(below);
    return below + 1;
}

int main(int argc, char **argv) {
    double end = target_now() + seconds_argument(argc, argv, 1, 60);
    uint64_t sum = 1;
    while (target_now() < end) sum = call_often(sum);
    report_cpu("plt");
    return sum == 42;
}

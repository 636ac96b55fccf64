/* One short life: burns the given milliseconds of CPU time and exits. usage: short_life ms */
#include "burn.h"

static double cpu_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

NOINLINE static uint64_t short_life_burn(void) { return burn_units(20); }

NOINLINE static uint64_t short_life_work(double seconds) {
    uint64_t sum = 0;
    while (cpu_now() < seconds) sum += short_life_burn();
    KEEP_FRAME(sum);
    return sum;
}

int main(int argc, char **argv) {
    return short_life_work((argc > 1 ? atof(argv[1]) : 40) / 1e3) == 42;
}

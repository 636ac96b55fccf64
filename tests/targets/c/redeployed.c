/* One of two programs, by -DSECOND: their functions of the same address have other names and other frames.
 * usage: redeployed [seconds] */
#include "burn.h"

static double end;

#ifdef SECOND
#define BURNS burns_second
#define CALLS calls_second
#define FRAME 3000
#else
#define BURNS burns_first
#define CALLS calls_first
#define FRAME 40
#endif

NOINLINE static uint64_t BURNS(void) {
    volatile char frame[FRAME];
    frame[0] = 1;
    uint64_t x = 0;
    while (target_now() < end) x += burn_units(20);
    return x + (uint64_t)frame[0];
}

NOINLINE static uint64_t CALLS(void) {
    uint64_t x = BURNS();
    KEEP_FRAME(x);
    return x;
}

int main(int argc, char **argv) {
    end = target_now() + seconds_argument(argc, argv, 1, 10);
    uint64_t x = CALLS();
    report_cpu("redeployed");
    return x == 1;
}

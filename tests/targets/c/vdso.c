/* Spends its time in the vDSO. usage: vdso [seconds] */
#include "burn.h"

NOINLINE static long ask_the_time(int times) {
    struct timespec t;
    struct timeval v;
    long sum = 0;
    for (int i = 0; i < times; i++) {
        clock_gettime(CLOCK_MONOTONIC, &t);
        sum += t.tv_nsec;
        gettimeofday(&v, 0);
        sum += v.tv_usec;
    }
    return sum;
}

NOINLINE static long ask_often(void) {
    long below = ask_the_time(1000);
    KEEP_FRAME(below);
    return below + 1;
}

int main(int argc, char **argv) {
    double end = target_now() + seconds_argument(argc, argv, 1, 60);
    long sum = 0;
    while (target_now() < end) sum += ask_often();
    report_cpu("vdso");
    return sum == 42;
}

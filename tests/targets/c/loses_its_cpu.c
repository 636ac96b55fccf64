/* loses_its_cpu: burns 4 ms of CPU time, then wakes a process of higher priority on the same CPU, which takes
 * it for 4 ms; again and again. It never blocks. */
#define _GNU_SOURCE
#include "burn.h"
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>

static double used(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

NOINLINE static void burns(void) {
    double until = used() + 0.004;
    while (used() < until) {
        uint64_t x = burn_units(4);
        KEEP_FRAME(x);
    }
}

NOINLINE static void wakes(int end) {
    ssize_t written = write(end, "", 1);
    KEEP_FRAME(written);
}

int main(void) {
    int ends[2];
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &set)) continue;
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        break;
    }
    if (sched_setaffinity(0, sizeof set, &set) || pipe(ends)) return 1;
    pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) {
        struct sched_param priority = {.sched_priority = 1};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        /* Not allowed in each control group. */
        if (sched_setscheduler(0, SCHED_FIFO, &priority)) setpriority(PRIO_PROCESS, 0, -20);
        char byte;
        while (read(ends[0], &byte, 1) == 1) burns();
        return 0;
    }
    for (;;) {
        burns();
        wakes(ends[1]);
    }
}

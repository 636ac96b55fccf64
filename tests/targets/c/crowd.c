/* Many processes at the same time, each of which uses the CPU for a moment now and then.
 * usage: crowd [seconds] [processes] */
#include "burn.h"

#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    double end = target_now() + seconds_argument(argc, argv, 1, 60);
    int count = (int)seconds_argument(argc, argv, 2, 1000);
    int born = 0;
    for (; born < count; born++) {
        pid_t child = fork();
        if (child < 0) break;
        if (child > 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        /* One after the other, so that all together keep less than one CPU busy. */
        uint64_t sink = 0;
        usleep((unsigned)(born % 1000) * 1000);
        while (target_now() < end) {
            double until = target_now() + 0.0005;
            while (target_now() < until) sink += burn_units(1);
            usleep((unsigned)count * 2000 > 20000000 ? 20000000 : (unsigned)count * 2000);
        }
        _exit(sink == 42);
    }
    printf("born %d\n", born);
    fflush(stdout);
    while (target_now() < end) usleep(100000);
    kill(0, SIGKILL);
    return 0;
}

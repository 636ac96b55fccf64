/* Starts many short-lived processes, two at a time, and prints their total CPU time.
 * usage: short_lives program count [gap_ms] */
#include "burn.h"
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    int count = atoi(argv[2]), alive = 0, started = 0;
    useconds_t gap = argc > 3 ? (useconds_t)(atof(argv[3]) * 1000) : 0;
    double seconds = 0;
    while (started < count || alive > 0) {
        if (started < count && alive < 2) {
            char milliseconds[16];
            snprintf(milliseconds, sizeof milliseconds, "%d", 30 + started % 21);
            char *arguments[] = {argv[1], milliseconds, 0};
            pid_t pid;
            if (posix_spawn(&pid, argv[1], 0, 0, arguments, environ) != 0) return 3;
            started++;
            alive++;
            if (gap) usleep(gap);
            continue;
        }
        struct rusage u;
        if (wait4(-1, 0, 0, &u) < 0) return 4;
        alive--;
        seconds += (double)u.ru_utime.tv_sec + (double)u.ru_utime.tv_usec / 1e6 + (double)u.ru_stime.tv_sec +
                   (double)u.ru_stime.tv_usec / 1e6;
    }
    printf("cpu name=short_life pid=0 seconds=%.6f\n", seconds);
    return 0;
}

/* Starts processes at a rate. usage: exec_churn program per_second seconds [arguments] */
#include "burn.h"
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    double rate = atof(argv[2]), start = target_now(), end = start + atof(argv[3]);
    char **arguments = argv + 3;
    arguments[0] = argv[1];
    long started = 0, ended = 0;
    while (target_now() < end) {
        if ((double)started < (target_now() - start) * rate && started - ended < 64) {
            pid_t pid;
            if (posix_spawn(&pid, argv[1], 0, 0, arguments, environ) != 0) return 3;
            started++;
        } else {
            usleep(200);
        }
        while (ended < started && waitpid(-1, 0, WNOHANG) > 0) ended++;
    }
    while (ended < started && waitpid(-1, 0, 0) > 0) ended++;
    printf("started=%ld per_second=%.0f\n", started, (double)started / (target_now() - start));
    return 0;
}

/* Children that never exec. usage: forks [seconds] */
#include "burn.h"
#include <sys/wait.h>

NOINLINE static uint64_t fork_parent_leaf(void) { return burn_units(200); }
NOINLINE static uint64_t fork_child_leaf(void) { return burn_units(200) ^ 1; } /* not the same code: it would be folded */

NOINLINE static void fork_child(void) {
    uint64_t sum = 0;
    for (int i = 0; i < 40; i++) sum += fork_child_leaf();
    _exit(sum == 42);
}

int main(int argc, char **argv) {
    double end = target_now() + seconds_argument(argc, argv, 1, 60);
    uint64_t sum = 0;
    while (target_now() < end) {
        pid_t pid = fork();
        if (pid == 0) fork_child();
        for (int i = 0; i < 40; i++) sum += fork_parent_leaf();
        waitpid(pid, 0, 0);
    }
    report_cpu("forks");
    return sum == 42;
}

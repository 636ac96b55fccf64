/* Children that burn in their parent's address space. usage: vfork [seconds] */
#define _GNU_SOURCE
#include "burn.h"
#include <sys/wait.h>

NOINLINE static uint64_t vfork_child_leaf(void) { return burn_units(200) ^ 1; } /* not the same code: it would be folded */
NOINLINE static uint64_t vfork_parent_leaf(void) { return burn_units(200); }

NOINLINE static uint64_t vfork_once(void) {
    static volatile uint64_t from_child;
    pid_t pid = vfork();
    if (pid == 0) {
        from_child += vfork_child_leaf();
        _exit(0);
    }
    waitpid(pid, 0, 0);
    uint64_t below = vfork_parent_leaf() + from_child;
    KEEP_FRAME(below);
    return below;
}

int main(int argc, char **argv) {
    double end = target_now() + seconds_argument(argc, argv, 1, 60);
    uint64_t sum = 0;
    while (target_now() < end) sum += vfork_once();
    report_cpu("vfork");
    return sum == 42;
}

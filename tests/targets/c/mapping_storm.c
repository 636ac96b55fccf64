/* Maps executable memory files without end, thousands a second, and uses some CPU in them.
 * usage: mapping_storm SECONDS
 *
 * Any user may do so. Each mapping is an event, a file that strata has never seen, and a descriptor if it
 * opens that. */
#define _GNU_SOURCE
#include "burn.h"

#include <sys/mman.h>

NOINLINE uint64_t storm_burn(uint64_t units) {
    uint64_t x = burn_units(units);
    KEEP_FRAME(x);
    return x;
}

int main(int argc, char **argv) {
    double end = target_now() + seconds_argument(argc, argv, 1, 5);
    printf("ready\n");
    fflush(stdout);
    unsigned long mapped = 0;
    while (target_now() < end) {
        int fd = memfd_create("storm", MFD_CLOEXEC);
        if (fd < 0) continue;
        if (ftruncate(fd, 4096) == 0) {
            void *memory = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
            if (memory != MAP_FAILED && mapped++ % 64 != 0) munmap(memory, 4096);
        }
        close(fd);
        if (mapped % 1024 == 0) storm_burn(100);
    }
    report_cpu("mapping_storm");
    return 0;
}

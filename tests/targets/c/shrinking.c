/* Maps a file executable and keeps shrinking and growing it while it burns.
 * usage: shrinking file [seconds] */
#include "burn.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

NOINLINE static uint64_t shrinking_leaf(void) { return burn_units(20); }

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    double end = target_now() + seconds_argument(argc, argv, 2, 60);
    int fd = open(argv[1], O_RDWR);
    struct stat s;
    if (fd < 0 || fstat(fd, &s) != 0) return 3;
    char *content = malloc((size_t)s.st_size);
    if (pread(fd, content, (size_t)s.st_size, 0) != s.st_size) return 4;
    uint64_t sum = 0;
    while (target_now() < end) {
        void *mapped = mmap(0, (size_t)s.st_size, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
        for (int i = 0; i < 20; i++) {
            if (ftruncate(fd, i % 2 ? 0 : 4096) != 0) return 5;
            sum += shrinking_leaf();
            if (pwrite(fd, content, (size_t)s.st_size, 0) != s.st_size) return 6;
            sum += shrinking_leaf();
        }
        munmap(mapped, (size_t)s.st_size);
    }
    report_cpu("shrinking");
    return sum == 42;
}

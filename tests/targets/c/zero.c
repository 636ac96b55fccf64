/* Reads /dev/zero through its own call chain: most samples are in the kernel.
 * usage: zero [seconds] */
#include "burn.h"
#include <fcntl.h>

static char buffer[1 << 20];

NOINLINE static long zero_inner(int fd) {
    long got = read(fd, buffer, sizeof buffer);
    KEEP_FRAME(got);
    return got;
}

NOINLINE static long zero_outer(int fd) {
    long got = zero_inner(fd);
    KEEP_FRAME(got);
    return got + 1;
}

int main(int argc, char **argv) {
    double end = target_now() + seconds_argument(argc, argv, 1, 60);
    int fd = open("/dev/zero", O_RDONLY);
    long sum = 0;
    while (target_now() < end) sum += zero_outer(fd);
    report_cpu("zero");
    return sum == 42;
}

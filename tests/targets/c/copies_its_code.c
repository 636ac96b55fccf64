/* copies_its_code [seconds]: has the pages of one function copied to memory without a file, at the same
 * address, as Node and PHP do to have their code on huge pages; then runs it. */
#define _GNU_SOURCE
#include "burn.h"
#include <string.h>
#include <sys/mman.h>

extern char copied_start[], copied_end[];
int stays_behind(int argc, char **argv);

__asm__(".text\n.p2align 12\ncopied_start:\n");

NOINLINE uint64_t burns_copied(uint64_t units) {
    uint64_t x = burn_units(units);
    KEEP_FRAME(x);
    return x;
}

NOINLINE uint64_t calls_copied(uint64_t units) {
    uint64_t x = burns_copied(units);
    KEEP_FRAME(x);
    return x;
}

__asm__(".text\n.p2align 12\ncopied_end:\n");

/* Behind the copied pages, so that the file is on both sides of them. */
int stays_behind(int argc, char **argv) {
    size_t length = (size_t)(copied_end - copied_start);
    void *kept = malloc(length);
    memcpy(kept, copied_start, length);
    int all = PROT_READ | PROT_WRITE | PROT_EXEC;
    if (mmap(copied_start, length, all, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != copied_start) return 1;
    memcpy(copied_start, kept, length);
    if (mprotect(copied_start, length, PROT_READ | PROT_EXEC)) return 1;
    puts("copied");
    fflush(stdout);
    double end = target_now() + seconds_argument(argc, argv, 1, 60);
    uint64_t sum = 0;
    while (target_now() < end) sum += calls_copied(4);
    report_cpu("copies_its_code");
    return sum == 42;
}

int main(int argc, char **argv) { return stays_behind(argc, argv); }

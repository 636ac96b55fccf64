/* Burns on a stack that reads as zeros where the return address should be, in the middle of a page: no
 * thread, no program and no coroutine starts there.
 * usage: zero_stack [seconds] */
#include "burn.h"
#include <sys/mman.h>

static double end;

NOINLINE static void burn_without_caller(void) {
    uint64_t x = 0;
    while (target_now() < end) x += burn_units(20);
    report_cpu("zero_stack");
    _exit(x == 1);
}

int main(int argc, char **argv) {
    end = target_now() + seconds_argument(argc, argv, 1, 10);
    uint8_t *stack = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED) return 1;
    /* As after a call; the return address is 0. */
    __asm__ volatile("mov %0, %%rsp\n\txor %%ebp, %%ebp\n\tjmp *%1"
                     :
                     : "r"(stack + 32768 - 2048 - 8), "r"(burn_without_caller)
                     : "memory");
    __builtin_unreachable();
}

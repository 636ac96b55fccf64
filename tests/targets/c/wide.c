/* Frame pointers and no unwind tables, `_start` included, and more code than is decoded. */
#include "burn.h"

__asm__(".text\n"
        ".globl _start\n"
        ".type _start, @function\n"
        "_start: endbr64\n"
        "xor %ebp, %ebp\n"
        "mov %rdx, %r9\n"
        "pop %rsi\n"
        "mov %rsp, %rdx\n"
        "and $-16, %rsp\n"
        "push %rax\n"
        "push %rsp\n"
        "xor %r8d, %r8d\n"
        "xor %ecx, %ecx\n"
        "lea main(%rip), %rdi\n"
        "call *__libc_start_main@GOTPCREL(%rip)\n"
        "hlt\n"
        ".size _start, .-_start\n"
        ".balign 16\n"
        ".skip 20 << 20, 0xcc\n");

/* Calls, so that it has a frame. */
NOINLINE static void burns(void) {
    burn_units(40);
    if (getppid() < 0) abort();
}

int main(int argc, char **argv) {
    double end = target_now() + seconds_argument(argc, argv, 1, 2);
    while (target_now() < end) burns();
    report_cpu("wide");
    return 0;
}

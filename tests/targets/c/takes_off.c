/* A function that takes its return address off the stack while it runs, as OCaml's `caml_c_call` does: its
 * frame is empty, and its caller is just below the stack pointer. usage: takes_off [seconds] */
#include "burn.h"

void takes_off(uint64_t count);

__asm__(".text\n"
        ".type takes_off, @function\n"
        "takes_off:\n"
        "    .cfi_startproc\n"
        "    popq %r11\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "1:  subq $1, %rdi\n"
        "    jnz 1b\n"
        "    pushq %r11\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size takes_off, . - takes_off\n");

NOINLINE static uint64_t calls(uint64_t x) {
    takes_off(20000);
    KEEP_FRAME(x);
    return x + 1;
}

int main(int argc, char **argv) {
    double end = target_now() + seconds_argument(argc, argv, 1, 60);
    uint64_t sum = 0;
    while (target_now() < end) sum = calls(sum);
    report_cpu("takes_off");
    return sum == 42;
}

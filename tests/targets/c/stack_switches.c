/* Burns on other stacks that lie above and below the one that they were entered from, by assembly
 * that describes the switch as OCaml 5's runtime does: the callee's stack holds the caller's stack
 * pointer, or the address of a structure that does.
 * usage: stack_switches [seconds] */
#include "burn.h"

#define STACK (64 * 1024)

/* on_stack(function, top): the stack pointer of before lies at the top of the stack.
 * on_fiber(function, top, parent): there lies the address of a structure with the stack pointer at 8.
 * leaves(function, top): a register holds it, as where OCaml's code calls C that does not allocate. */
__asm__(
    ".text\n"
    ".globl on_stack\n"
    ".type on_stack, @function\n"
    "on_stack:\n"
    "  .cfi_startproc\n"
    "  .cfi_signal_frame\n"
    "  movq %rsp, -16(%rsi)\n"
    "  leaq -32(%rsi), %rsp\n"
    "  .cfi_remember_state\n"
    "  .cfi_escape 0x0f, 5, 0x77, 16, 0x06, 0x23, 8\n"
    "  call *%rdi\n"
    "  movq 16(%rsp), %rsp\n"
    "  .cfi_restore_state\n"
    "  ret\n"
    "  .cfi_endproc\n"
    ".size on_stack, . - on_stack\n"
    ".globl on_fiber\n"
    ".type on_fiber, @function\n"
    "on_fiber:\n"
    "  .cfi_startproc\n"
    "  .cfi_signal_frame\n"
    "  movq %rsp, 8(%rdx)\n"
    "  movq %rdx, -16(%rsi)\n"
    "  leaq -32(%rsi), %rsp\n"
    "  .cfi_remember_state\n"
    "  .cfi_escape 0x0f, 8, 0x77, 16, 0x06, 0x23, 8, 0x06, 0x23, 8\n"
    "  call *%rdi\n"
    "  movq 16(%rsp), %rdx\n"
    "  movq 8(%rdx), %rsp\n"
    "  .cfi_restore_state\n"
    "  ret\n"
    "  .cfi_endproc\n"
    ".size on_fiber, . - on_fiber\n"
    ".globl leaves\n"
    ".type leaves, @function\n"
    "leaves:\n"
    "  .cfi_startproc\n"
    "  pushq %rbx\n"
    "  .cfi_adjust_cfa_offset 8\n"
    "  .cfi_rel_offset %rbx, 0\n"
    "  movq %rsp, %rbx\n"
    "  .cfi_remember_state\n"
    "  .cfi_def_cfa_register %rbx\n"
    "  movq %rsi, %rsp\n"
    "  call *%rdi\n"
    "  movq %rbx, %rsp\n"
    "  .cfi_restore_state\n"
    "  popq %rbx\n"
    "  .cfi_adjust_cfa_offset -8\n"
    "  .cfi_restore %rbx\n"
    "  ret\n"
    "  .cfi_endproc\n"
    ".size leaves, . - leaves\n");

void on_stack(void (*function)(void), char *top);
void on_fiber(void (*function)(void), char *top, void *parent);
void leaves(void (*function)(void), char *top);

/* The first is entered from the main thread's stack, the second from the first. */
static char stacks[3][STACK] __attribute__((aligned(16)));
static void *parents[2][2];
static uint64_t sum;

#define TOP(number) (stacks[number] + STACK)

NOINLINE static void burn_above(void) { sum += burn_units(4); }
NOINLINE static void burn_below(void) { sum += burn_units(5); }
NOINLINE static void burn_in_fiber(void) { sum += burn_units(6); }
NOINLINE static void burn_outside(void) { sum += burn_units(7); }

NOINLINE static void switches_up(void) {
    on_stack(burn_above, TOP(2));
    sum++;
}
NOINLINE static void switches_down(void) {
    on_stack(burn_below, TOP(0));
    sum++;
}
NOINLINE static void starts_fiber(void) {
    on_fiber(burn_in_fiber, TOP(2), parents[1]);
    sum++;
}

NOINLINE static void leaves_up(void) {
    leaves(burn_outside, TOP(2));
    sum++;
}

int main(int argc, char **argv) {
    double end = target_now() + seconds_argument(argc, argv, 1, 10);
    while (target_now() < end) {
        on_stack(switches_up, TOP(1));
        on_stack(switches_down, TOP(1));
        on_fiber(starts_fiber, TOP(1), parents[0]);
        on_stack(leaves_up, TOP(1));
    }
    report_cpu("stack_switches");
    return sum == 1;
}

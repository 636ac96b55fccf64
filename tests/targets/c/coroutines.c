/* Burns in coroutines of three makers, in turn: glibc's makecontext; boost.context's, whose functions
 * return to `finish`; and Ruby's and Crystal's, whose functions return nowhere. The assembly has no call
 * frame information, as theirs.
 * usage: coroutines [seconds] */
#include "burn.h"
#include <sys/mman.h>
#include <ucontext.h>

#define STACK (64 * 1024)

__asm__(
    ".text\n"
    ".p2align 4\n"
    ".globl make_fcontext\n"
    ".type make_fcontext, @function\n"
    "make_fcontext:\n"
    "  movq %rdi, %rax\n"
    "  andq $-16, %rax\n"
    "  leaq -0x40(%rax), %rax\n"
    "  movq %rdx, 0x28(%rax)\n"
    "  stmxcsr (%rax)\n"
    "  fnstcw 0x4(%rax)\n"
    "  leaq trampoline(%rip), %rcx\n"
    "  movq %rcx, 0x38(%rax)\n"
    "  leaq finish(%rip), %rcx\n"
    "  movq %rcx, 0x30(%rax)\n"
    "  ret\n"
    "trampoline:\n"
    "  pushq %rbp\n"
    "  jmp *%rbx\n"
    "finish:\n"
    "  xorq %rdi, %rdi\n"
    "  call _exit@PLT\n"
    "  hlt\n"
    ".size make_fcontext, . - make_fcontext\n"
    ".p2align 4\n"
    ".globl jump_fcontext\n"
    ".type jump_fcontext, @function\n"
    "jump_fcontext:\n"
    "  leaq -0x38(%rsp), %rsp\n"
    "  stmxcsr (%rsp)\n"
    "  fnstcw 0x4(%rsp)\n"
    "  movq %r12, 0x8(%rsp)\n"
    "  movq %r13, 0x10(%rsp)\n"
    "  movq %r14, 0x18(%rsp)\n"
    "  movq %r15, 0x20(%rsp)\n"
    "  movq %rbx, 0x28(%rsp)\n"
    "  movq %rbp, 0x30(%rsp)\n"
    "  movq %rsp, %rax\n"
    "  movq %rdi, %rsp\n"
    "  movq 0x38(%rsp), %r8\n"
    "  ldmxcsr (%rsp)\n"
    "  fldcw 0x4(%rsp)\n"
    "  movq 0x8(%rsp), %r12\n"
    "  movq 0x10(%rsp), %r13\n"
    "  movq 0x18(%rsp), %r14\n"
    "  movq 0x20(%rsp), %r15\n"
    "  movq 0x28(%rsp), %rbx\n"
    "  movq 0x30(%rsp), %rbp\n"
    "  leaq 0x40(%rsp), %rsp\n"
    "  movq %rax, %rdi\n"
    "  jmp *%r8\n"
    ".size jump_fcontext, . - jump_fcontext\n"
    ".p2align 4\n"
    ".globl coroutine_transfer\n"
    ".type coroutine_transfer, @function\n"
    "coroutine_transfer:\n"
    "  pushq %rbp\n"
    "  pushq %rbx\n"
    "  pushq %r12\n"
    "  pushq %r13\n"
    "  pushq %r14\n"
    "  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq (%rsi), %rsp\n"
    "  popq %r15\n"
    "  popq %r14\n"
    "  popq %r13\n"
    "  popq %r12\n"
    "  popq %rbx\n"
    "  popq %rbp\n"
    "  ret\n"
    ".size coroutine_transfer, . - coroutine_transfer\n");

void *make_fcontext(void *top, unsigned long size, void (*function)(void *));
void *jump_fcontext(void *to);
void coroutine_transfer(void **from, void **to);

static char *new_stack(void) {
    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED) exit(1);
    return stack;
}

/* Different amounts: one function would do for three that are the same. */
static uint64_t sum;

static ucontext_t caller, context;

NOINLINE static void burn_in_makecontext(void) { sum += burn_units(4); }

static void by_makecontext(void) {
    for (;;) {
        burn_in_makecontext();
        swapcontext(&context, &caller);
    }
}

NOINLINE static void burn_in_fcontext(void) { sum += burn_units(5); }

static void by_fcontext(void *from) {
    for (;;) {
        burn_in_fcontext();
        from = jump_fcontext(from);
    }
}

static void *resumes, *transferred;

NOINLINE static void burn_without_return(void) { sum += burn_units(6); }

static void by_transfer(void) {
    for (;;) {
        burn_without_return();
        coroutine_transfer(&transferred, &resumes);
    }
}

int main(int argc, char **argv) {
    getcontext(&context);
    context.uc_stack.ss_sp = new_stack();
    context.uc_stack.ss_size = STACK;
    makecontext(&context, by_makecontext, 0);

    void *fiber = make_fcontext(new_stack() + STACK, STACK, by_fcontext);

    void **top = (void **)(new_stack() + STACK);
    *--top = NULL;
    *--top = (void *)by_transfer;
    transferred = top - 6;

    double end = target_now() + seconds_argument(argc, argv, 1, 10);
    while (target_now() < end) {
        for (int turn = 0; turn < 100; turn++) {
            swapcontext(&caller, &context);
            fiber = jump_fcontext(fiber);
            coroutine_transfer(&resumes, &transferred);
        }
    }
    report_cpu("coroutines");
    return sum == 1;
}

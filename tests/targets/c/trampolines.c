/* A recursion that calls itself through code written at run time and described nowhere, as
 * CPython does with `-X perf` (Python/asm_trampoline.S). `plain`: as 3.12 and 3.13.0 write it,
 * without a frame pointer; `framed`: with one.
 * usage: trampolines plain|framed [seconds] */
#include "burn.h"
#include <string.h>
#include <sys/mman.h>

#define DEPTH 20
#define COPIES 1000

typedef uint64_t (*evaluator)(uint64_t depth, uint64_t frame, uint64_t flag);
typedef uint64_t (*trampoline)(uint64_t depth, uint64_t frame, uint64_t flag, evaluator evaluate);

/* sub $8,%rsp; call *%rcx; add $8,%rsp; ret */
static const uint8_t PLAIN[] = {0x48, 0x83, 0xec, 0x08, 0xff, 0xd1, 0x48, 0x83, 0xc4, 0x08, 0xc3};
/* push %rbp; mov %rsp,%rbp; call *%rcx; pop %rbp; ret */
static const uint8_t FRAMED[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd1, 0x5d, 0xc3};

static uint8_t *copies;
static size_t size;

NOINLINE static uint64_t leaf(void) { return burn_units(20); }

NOINLINE static uint64_t evaluate(uint64_t depth, uint64_t frame, uint64_t flag) {
    uint64_t x;
    if (depth == 0) {
        x = leaf();
    } else {
        trampoline call = (trampoline)(copies + (depth * 37 % COPIES) * size);
        x = call(depth - 1, frame, flag, evaluate);
    }
    KEEP_FRAME(x);
    return x + depth;
}

int main(int argc, char **argv) {
    int framed = argc > 1 && strcmp(argv[1], "framed") == 0;
    const uint8_t *code = framed ? FRAMED : PLAIN;
    size = framed ? sizeof FRAMED : sizeof PLAIN;
    copies = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copies == MAP_FAILED) return 1;
    for (size_t i = 0; i < COPIES; i++) memcpy(copies + i * size, code, size);
    if (mprotect(copies, 65536, PROT_READ | PROT_EXEC) != 0) return 1;
    double end = target_now() + seconds_argument(argc, argv, 2, 10);
    uint64_t x = 0;
    while (target_now() < end) x += evaluate(DEPTH, 0, 0);
    report_cpu("trampolines");
    return x == 1;
}

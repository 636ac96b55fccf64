/* Leaves deep stacks by longjmp. usage: longjmp [seconds] */
#include "burn.h"
#include <setjmp.h>

static jmp_buf back;
static uint64_t sum;

NOINLINE static uint64_t jump_out(int turn) {
    sum += burn_units(4);
    if (turn % 3) longjmp(back, turn % 7 + 1);
    return sum;
}

NOINLINE static uint64_t jump_descend(int depth, int turn) {
    uint64_t below = depth > 0 ? jump_descend(depth - 1, turn) : jump_out(turn);
    KEEP_FRAME(below);
    return below + 1;
}

int main(int argc, char **argv) {
    double end = target_now() + seconds_argument(argc, argv, 1, 60);
    volatile int turn = 0;
    while (target_now() < end) {
        if (setjmp(back) == 0) sum += jump_descend(20, turn);
        turn++;
    }
    report_cpu("longjmp");
    return sum == 42;
}

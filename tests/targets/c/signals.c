/* Burns in signal handlers: on the normal stack, on an alternative one, and in handlers that
 * interrupt a leaf without a frame at any instruction. usage: signals [seconds] */
#define _GNU_SOURCE
#include "burn.h"
#include <signal.h>
#include <string.h>

static volatile uint64_t sum;

NOINLINE static uint64_t handler_leaf(uint64_t units) { return burn_units(units); }

NOINLINE static void on_signal(int signal) { sum += handler_leaf(signal == SIGALRM ? 40 : 8); }
NOINLINE static void on_alternative_stack(int signal, siginfo_t *info, void *context) {
    (void)info, (void)context;
    sum += handler_leaf(signal == SIGUSR2 ? 8 : 40);
}

NOINLINE static uint64_t interrupted_leaf(void) { return burn_units(40); }

NOINLINE static uint64_t raise_and_burn(int turn) {
    raise(turn & 1 ? SIGUSR1 : SIGUSR2);
    uint64_t below = interrupted_leaf();
    KEEP_FRAME(below);
    return below;
}

int main(int argc, char **argv) {
    double end = target_now() + seconds_argument(argc, argv, 1, 60);
    static char other_stack[1 << 16];
    stack_t stack = {.ss_sp = other_stack, .ss_size = sizeof other_stack};
    sigaltstack(&stack, 0);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    sigaction(SIGUSR1, &action, 0);
    sigaction(SIGALRM, &action, 0);
    action.sa_sigaction = on_alternative_stack;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGUSR2, &action, 0);
    sigaction(SIGVTALRM, &action, 0);
    struct itimerval every = {{0, 1700}, {0, 1700}};
    setitimer(ITIMER_REAL, &every, 0);
    every.it_interval.tv_usec = every.it_value.tv_usec = 2300;
    setitimer(ITIMER_VIRTUAL, &every, 0);
    uint64_t own = 0;
    for (int turn = 0; target_now() < end; turn++) own += raise_and_burn(turn);
    report_cpu("signals");
    return own + sum == 42;
}

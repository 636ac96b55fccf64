/* Every shape a C stack takes without frame pointers. Run one instruction at a time by
   single_step.rs; it must stay short. */
#define _GNU_SOURCE
#include <alloca.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static volatile long sink;

NOINLINE long leaf(long a) {
    sink += a;
    return sink ^ a;
}

NOINLINE long recurse(int depth, long a, long b, long c) {
    if (depth == 0)
        return leaf(a + b + c);
    long r = recurse(depth - 1, a ^ b, b + c, c - a);
    return r + leaf(a) + leaf(b) + leaf(c);
}

NOINLINE long on_alloca(int size) {
    char *memory = alloca((size_t)size);
    memset(memory, size, (size_t)size);
    return leaf(memory[size / 2]) + recurse(1, size, 2, 3);
}

/* A realigned stack with a variable part: the CFA is kept in memory (DRAP). */
NOINLINE long realigned(int size) {
    char variable[size];
    __attribute__((aligned(64))) char aligned[128];
    memset(variable, 1, (size_t)size);
    memset(aligned, 2, sizeof aligned);
    sink += variable[size - 1] + aligned[5];
    return leaf((long)aligned & 63) + recurse(1, (long)variable[0], aligned[1], 3);
}

NOINLINE long large_frame(int n) {
    volatile char memory[300000];
    memory[n] = 1;
    memory[299999 - n] = 2;
    return leaf(memory[n]) + leaf(memory[299999 - n]);
}

NOINLINE long many_arguments(long a, long b, long c, long d, long e, long f, long g, long h,
                             long i, long j) {
    return leaf(a + b + c + d + e + f) + leaf(g + h + i + j);
}

NOINLINE long variadic(int count, ...) {
    va_list list;
    long sum = 0;
    va_start(list, count);
    while (count--)
        sum += leaf(va_arg(list, int));
    va_end(list);
    return sum;
}

NOINLINE double floating(double x) {
    return leaf((long)x) + x * 2.5;
}

static int compare(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    leaf(x);
    return x < y ? -1 : x > y;
}

NOINLINE void sort(void) {
    int values[] = {5, 3, 9, 1, 7, 2, 8};
    qsort(values, 7, sizeof *values, compare);
    sink += values[3];
}

static void on_signal(int number) {
    leaf(number);
    recurse(2, number, 2, 3);
}

static void on_signal_with_context(int number, siginfo_t *info, void *context) {
    (void)info;
    (void)context;
    recurse(1, number, 2, 3);
}

NOINLINE void signals(void) {
    static char other_stack[1 << 16];
    stack_t stack = {.ss_sp = other_stack, .ss_size = sizeof other_stack};
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    sigaltstack(&stack, NULL);
    struct sigaction on_stack = {.sa_sigaction = on_signal_with_context,
                                 .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGUSR2, &on_stack, NULL);
    raise(SIGUSR2);
}

static jmp_buf place;

NOINLINE void jump(int depth) {
    if (depth == 0)
        longjmp(place, 1);
    jump(depth - 1);
    sink++;
}

NOINLINE void jumps(void) {
    if (setjmp(place) == 0)
        jump(5);
    leaf(1);
}

NOINLINE void forks(void) {
    pid_t child = vfork();
    if (child == 0)
        _exit(3);
    int status;
    waitpid(child, &status, 0);
    leaf(status);
}

static void *thread(void *argument) {
    recurse(3, (long)argument, 2, 3);
    return (void *)leaf(4);
}

NOINLINE void threads(void) {
    pthread_t id;
    void *result;
    if (pthread_create(&id, NULL, thread, (void *)7) == 0)
        pthread_join(id, &result);
}

NOINLINE void library(void) {
    char text[64];
    struct timespec now;
    snprintf(text, sizeof text, "%d %s %g", 42, "forty-two", 4.2);
    sink += (long)strtod("3.25", NULL) + (long)strlen(text);
    void *memory = malloc(100);
    memory = realloc(memory, 100000);
    free(memory);
    clock_gettime(CLOCK_MONOTONIC, &now);
    sink += now.tv_nsec + time(NULL);
    errno = 0;
    close(-1);
}

NOINLINE long choose(int n) {
    switch (n) {
    case 0: return leaf(1);
    case 1: return recurse(1, 1, 2, 3);
    case 2: return on_alloca(32);
    case 3: return many_arguments(1, 2, 3, 4, 5, 6, 7, 8, 9, 10);
    case 4: return variadic(3, 1, 2, 3);
    case 5: return (long)floating(2.0);
    case 6: return realigned(33);
    default: return large_frame(n);
    }
}

static void at_end(void) {
    leaf(9);
}

int main(void) {
    atexit(at_end);
    for (int i = 0; i < 8; i++)
        choose(i);
    recurse(20, 1, 2, 3);
    sort();
    library();
    jumps();
    signals();
    threads();
    forks();
    return 0;
}

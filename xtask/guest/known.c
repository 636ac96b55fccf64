/* A program whose profile is known: `known SECONDS`.
 *
 * Three leaves burn 50, 30 and 20 % of its time in user mode, called through recursion and a
 * callback out of libc; a fourth part of it is spent in the kernel. Built with
 * -O2 -fomit-frame-pointer: only its unwind tables lead from a leaf to main. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define ALONE __attribute__((noinline, noclone))
/* After a call: keeps it from becoming a jump, which would leave no frame. */
#define NOT_A_TAIL_CALL __asm__ volatile("" ::: "memory")

static volatile unsigned long sink;

/* One work unit, the same instructions in each leaf. */
#define BURN(units)                                                   \
    do {                                                              \
        unsigned long value = sink;                                   \
        for (unsigned long i = 0; i < (units) * 20000UL; i++) {       \
            value = value * 6364136223846793005UL + i;                \
            __asm__ volatile("" : "+r"(value));                       \
        }                                                             \
        sink = value;                                                 \
    } while (0)

ALONE static void leaf_half(void) { BURN(50); }
ALONE static void leaf_third(void) { BURN(30); }
ALONE static void leaf_fifth(void) { BURN(20); }

ALONE static void leaves(void)
{
    leaf_half();
    leaf_third();
    leaf_fifth();
    NOT_A_TAIL_CALL;
}

static int compare(const void *left, const void *right)
{
    leaves();
    return *(const int *)left - *(const int *)right;
}

ALONE static void through_libc(void)
{
    int numbers[2] = {2, 1};
    qsort(numbers, 2, sizeof numbers[0], compare);
    sink += numbers[0];
    NOT_A_TAIL_CALL;
}

ALONE static void descend(int depth)
{
    if (depth == 0)
        through_libc();
    else
        descend(depth - 1);
    NOT_A_TAIL_CALL;
}

ALONE static void read_zeros(int file)
{
    static char buffer[1 << 20];
    for (int i = 0; i < 8; i++)
        sink += read(file, buffer, sizeof buffer);
    NOT_A_TAIL_CALL;
}

int main(int argc, char **argv)
{
    struct timespec start, now;
    int seconds = argc > 1 ? atoi(argv[1]) : 1;
    int file = open("/dev/zero", O_RDONLY);
    long rounds = 0;

    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        descend(20);
        read_zeros(file);
        rounds++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - start.tv_sec < seconds);
    printf("known: %ld rounds\n", rounds);
    return 0;
}

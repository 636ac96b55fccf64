// bursts SECONDS: three threads that each wait three hundred times for some microseconds, then once for long, again
// and again. At the end: `bursts: LONG SHORT`, the seconds that all of them have measured.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 3, SHORT_WAITS = 300, LONG_WAIT = 700000 };

static double end;
static double measured[THREADS][2];

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

// Both wait at the same depth of the stack, in the same function of the C library.
__attribute__((noinline)) static double waits_shortly(void) {
    double began = now();
    for (int wait = 0; wait < SHORT_WAITS; wait++) {
        usleep(10);
    }
    return now() - began;
}

__attribute__((noinline)) static double waits_long(void) {
    double began = now();
    usleep(LONG_WAIT);
    return now() - began;
}

static void *works(void *own) {
    double *sums = own;
    while (now() < end) {
        sums[1] += waits_shortly();
        sums[0] += waits_long();
    }
    return NULL;
}

int main(int count, char **arguments) {
    if (count < 2) {
        return 2;
    }
    end = now() + atof(arguments[1]);
    pthread_t threads[THREADS];
    for (int thread = 0; thread < THREADS; thread++) {
        pthread_create(&threads[thread], NULL, works, measured[thread]);
    }
    double sums[2] = {0, 0};
    for (int thread = 0; thread < THREADS; thread++) {
        pthread_join(threads[thread], NULL);
        sums[0] += measured[thread][0];
        sums[1] += measured[thread][1];
    }
    printf("bursts: %.3f %.3f\n", sums[0], sums[1]);
}

/* sleepers COUNT ACTIVE SECONDS [NAP]: COUNT threads, of which ACTIVE sleep NAP milliseconds at a time (20)
 * and the others until the end. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static volatile double end = 1e18;
static struct timespec nap = {0, 20000000};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void *rests(void *unused) {
    for (;;) pause();
    return unused;
}

static void *naps(void *unused) {
    while (now() < end) nanosleep(&nap, NULL);
    return unused;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    int count = atoi(argv[1]), active = atoi(argv[2]);
    if (argc > 4) nap.tv_nsec = atoi(argv[4]) * 1000000L;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 65536);
    for (int i = 0; i < count; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, i < active ? naps : rests, NULL) != 0) return 1;
    }
    end = now() + atof(argv[3]);
    printf("ready\n");
    fflush(stdout);
    /* Once: it is blocked, as the others are. */
    double left = end - now();
    struct timespec until = {(time_t)left, 0};
    nanosleep(&until, NULL);
    _exit(0);
}

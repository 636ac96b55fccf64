/* works FILE WORKERS SLEEPERS SECONDS: WORKERS threads that compute, each of which counts its units of work
 * in its own line of FILE (64 bytes, of which the first 8 are the count), and SLEEPERS threads that wait, a
 * tenth of which for 20 milliseconds at a time. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const struct timespec nap = {0, 20000000};

/* A unit of work is 5,000 steps in a table of 4 KiB. */
static void *computes(void *line) {
    volatile uint64_t *count = line;
    uint32_t table[1024] = {1};
    for (uint32_t state = 1;;) {
        for (int step = 0; step < 5000; step++) {
            state = state * 1664525 + 1013904223;
            table[state >> 22] += state;
        }
        *count = *count + 1 + (table[state >> 22] == 0x12345678);
    }
    return NULL;
}

static void *rests(void *unused) {
    for (;;) pause();
    return unused;
}

static void *naps(void *unused) {
    for (;;) nanosleep(&nap, NULL);
    return unused;
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    int workers = atoi(argv[2]), sleepers = atoi(argv[3]);
    int file = open(argv[1], O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, 64L * workers) != 0) return 1;
    char *lines = mmap(NULL, 64UL * workers, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (lines == MAP_FAILED) return 1;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 65536);
    pthread_t thread;
    for (int i = 0; i < sleepers; i++)
        if (pthread_create(&thread, &attributes, i % 10 ? rests : naps, NULL) != 0) return 1;
    for (int i = 0; i < workers; i++)
        if (pthread_create(&thread, &attributes, computes, lines + 64L * i) != 0) return 1;
    printf("ready\n");
    fflush(stdout);
    sleep((unsigned)atof(argv[4]) + 1);
    _exit(0);
}

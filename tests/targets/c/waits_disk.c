/* waits_disk FILE SECONDS: two seconds after its start, a thread touches pages of a mapped file and another one
 * reads the file: each time what has not been read before. At its end it prints "NAME seconds=S waits=N errors=E",
 * as `waits` does. */
#define _GNU_SOURCE
#include "waits.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* More than is read ahead. */
enum { STRIDE = 512 << 10 };

static double begin, end;
static int file;
static volatile char *mapped;

KEPT static int wait_page(off_t at) { RETURN(mapped[at] != 0); }

KEPT static int wait_read(off_t at) {
    char is = 1;
    ssize_t length = pread(file, &is, 1, at);
    RETURN(length != 1 || is != 0);
}

struct way { const char *name; int (*wait)(off_t); off_t from, to; };

static void *go(void *given) {
    const struct way *way = given;
    double waited = 0;
    int waits = 0, errors = 0;
    while (now() < begin) pause_for(100);
    for (off_t at = way->from; at < way->to && now() < end; at += STRIDE) {
        double before = now();
        errors += way->wait(at) != 0;
        waited += now() - before;
        waits += 1;
    }
    /* It would have waited for less than it was to. */
    errors += now() < end;
    printf("%s seconds=%f waits=%d errors=%d\n", way->name, waited, waits, errors);
    fflush(stdout);
    return NULL;
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    file = open(arguments[1], O_RDONLY);
    off_t size = file < 0 ? -1 : lseek(file, 0, SEEK_END);
    if (size <= 0) return 3;
    mapped = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) return 4;
    /* By then a profiler that has started it knows its code. */
    begin = now() + 2;
    end = begin + atof(arguments[2]);
    struct way ways[] = {
        {"wait_page", wait_page, STRIDE, size / 2}, {"wait_read", wait_read, size / 2 + STRIDE, size},
    };
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, go, &ways[i]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    return 0;
}

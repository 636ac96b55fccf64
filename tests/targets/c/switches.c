/* Threads that switch to each other through pipes, a pair on each CPU.
 * usage: switches per_second seconds. per_second: context switches of all together, 0: as fast as they can */
#define _GNU_SOURCE
#include "burn.h"
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

enum { MOST_PAIRS = 64, BATCH = 200 };

static double rate, seconds, start;
static int pairs;

struct pair {
    int there[2], back[2], cpu;
    long switches;
};

static void stay_on(int cpu) {
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(cpu, &only);
    sched_setaffinity(0, sizeof only, &only);
}

static void *answer(void *argument) {
    struct pair *own = argument;
    char byte;
    stay_on(own->cpu);
    while (read(own->there[0], &byte, 1) == 1 && write(own->back[1], &byte, 1) == 1) {}
    return 0;
}

static void *ask(void *argument) {
    struct pair *own = argument;
    char byte = 0;
    stay_on(own->cpu);
    while (target_now() < start + seconds) {
        /* Each round trip is two switches. */
        if (rate > 0 && (double)own->switches * pairs > (target_now() - start) * rate) {
            usleep(500);
            continue;
        }
        for (int i = 0; i < BATCH; i++)
            if (write(own->there[1], &byte, 1) != 1 || read(own->back[0], &byte, 1) != 1) return 0;
        own->switches += 2 * BATCH;
    }
    close(own->there[1]);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    static struct pair all[MOST_PAIRS];
    pthread_t threads[2 * MOST_PAIRS];
    cpu_set_t allowed;
    rate = atof(argv[1]);
    seconds = atof(argv[2]);
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE && pairs < MOST_PAIRS; cpu++)
        if (CPU_ISSET(cpu, &allowed)) all[pairs++].cpu = cpu;
    start = target_now();
    for (int i = 0; i < pairs; i++) {
        if (pipe(all[i].there) != 0 || pipe(all[i].back) != 0) return 3;
        if (pthread_create(&threads[2 * i], 0, answer, &all[i]) != 0) return 3;
        if (pthread_create(&threads[2 * i + 1], 0, ask, &all[i]) != 0) return 3;
    }
    for (int i = 0; i < 2 * pairs; i++) pthread_join(threads[i], 0);
    double elapsed = target_now() - start;
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    /* One that is woken may take the CPU at once from the thread that wakes it. */
    long switches = used.ru_nvcsw + used.ru_nivcsw;
    printf("switches=%ld per_second=%.0f\n", switches, (double)switches / elapsed);
    return 0;
}

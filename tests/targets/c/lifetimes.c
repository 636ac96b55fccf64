/* lifetimes SECONDS: 50 threads, on two CPUs, that burn, wait, or do both. Each prints, at its end,
 * "thread TID KIND elapsed=S run=S delay=S": its own clock, and what the scheduler counts of it (running,
 * waiting for a CPU); and, once it has been joined, "joined TID elapsed=S". Short ones come and go
 * meanwhile. */
#define _GNU_SOURCE
#include "burn.h"
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static double end;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t over = PTHREAD_COND_INITIALIZER;
static int is_over;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void pause_for(long microseconds) {
    struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000};
    nanosleep(&time, NULL);
}

NOINLINE static void burn_for(double seconds) {
    double until = now() + seconds;
    while (now() < until) __asm__ volatile("");
}

NOINLINE static void burns(void) { while (now() < end) burn_for(0.01); }
NOINLINE static void rests(void) {
    pthread_mutex_lock(&lock);
    while (!is_over) pthread_cond_wait(&over, &lock);
    pthread_mutex_unlock(&lock);
    __asm__ volatile("");
}
NOINLINE static void ticks(void) { while (now() < end) pause_for(2000); }
NOINLINE static void naps(void) { while (now() < end) pause_for(150000); }
NOINLINE static void does_both(void) { while (now() < end) { burn_for(0.003); pause_for(30000); } }
NOINLINE static void lives_briefly(void) { burn_for(0.02); pause_for(180000); burn_for(0.02); }

struct kind { const char *name; void (*work)(void); };
/* A thread that is to be: when it was asked for. */
struct birth { const struct kind *kind; double began; long tid; };
static const struct kind kinds[] = {
    {"burns", burns}, {"rests", rests}, {"ticks", ticks}, {"naps", naps}, {"does_both", does_both},
    {"lives_briefly", lives_briefly},
};

static void *go(void *given) {
    struct birth *birth = given;
    const struct kind *kind = birth->kind;
    long tid = birth->tid = syscall(SYS_gettid);
    kind->work();
    char path[64];
    unsigned long long run = 0, delay = 0;
    snprintf(path, sizeof path, "/proc/self/task/%ld/schedstat", tid);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%llu %llu", &run, &delay) != 2) return NULL;
    fclose(file);
    printf("thread %ld %s elapsed=%f run=%f delay=%f\n", tid, kind->name, now() - birth->began,
           (double)run / 1e9, (double)delay / 1e9);
    fflush(stdout);
    return NULL;
}

static void join(pthread_t thread, const struct birth *birth) {
    pthread_join(thread, NULL);
    printf("joined %ld elapsed=%f\n", birth->tid, now() - birth->began);
    fflush(stdout);
}

/* Of those that it may run on. */
static void stay_on(int most) {
    cpu_set_t allowed, own;
    CPU_ZERO(&own);
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && CPU_COUNT(&own) < most) CPU_SET(cpu, &own);
    sched_setaffinity(0, sizeof own, &own);
}

int main(int argc, char **argv) {
    stay_on(2);
    static const int counts[] = {8, 25, 4, 8, 4};
    double seconds = seconds_argument(argc, argv, 1, 10);
    end = now() + seconds;
    pthread_t threads[64], brief;
    static struct birth births[65];
    int count = 0;
    for (int kind = 0; kind < 5; kind++)
        for (int i = 0; i < counts[kind]; i++, count++) {
            births[count] = (struct birth){&kinds[kind], now(), 0};
            pthread_create(&threads[count], NULL, go, &births[count]);
        }
    while (now() < end - 1) {
        births[64] = (struct birth){&kinds[5], now(), 0};
        pthread_create(&brief, NULL, go, &births[64]);
        join(brief, &births[64]);
    }
    while (now() < end) pause_for(20000);
    pthread_mutex_lock(&lock);
    is_over = 1;
    pthread_cond_broadcast(&over);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < count; i++) join(threads[i], &births[i]);
    return 0;
}

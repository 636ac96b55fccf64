/* waits SECONDS: each thread waits in another way, again and again. At its end it prints
 * "NAME seconds=S waits=N errors=E": how long its waits took by its own clock, and how many calls failed.
 * One thread burns a fifth of its time instead. */
#define _GNU_SOURCE
#include "waits.h"
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double end;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t signalled = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t of_condition = PTHREAD_MUTEX_INITIALIZER;
static sem_t semaphore;
static int fifo[2], sockets[2], polled[2], watched;

KEPT static int wait_sleep(void) { struct timespec time = {0, 50000000}; RETURN(nanosleep(&time, NULL) != 0); }
KEPT static int wait_lock(void) { int failed = pthread_mutex_lock(&lock); pthread_mutex_unlock(&lock); RETURN(failed); }
KEPT static int wait_semaphore(void) { RETURN(sem_wait(&semaphore) != 0); }
KEPT static int wait_fifo(void) { char byte; RETURN(read(fifo[0], &byte, 1) != 1); }
KEPT static int wait_socket(void) { char byte; RETURN(recv(sockets[0], &byte, 1, 0) != 1); }
KEPT static int wait_poll(void) { RETURN(poll(NULL, 0, 50) != 0); }
KEPT static int wait_epoll(void) { struct epoll_event event; RETURN(epoll_wait(watched, &event, 1, 50) != 0); }
KEPT static int wait_child(void) {
    pid_t child = fork();
    if (child == 0) { pause_for(50); _exit(0); }
    RETURN(child < 0 || waitpid(child, NULL, 0) != child);
}
KEPT static int wait_condition(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 50000000;
    if (until.tv_nsec >= 1000000000) { until.tv_sec += 1; until.tv_nsec -= 1000000000; }
    pthread_mutex_lock(&of_condition);
    pthread_cond_timedwait(&signalled, &of_condition, &until);
    pthread_mutex_unlock(&of_condition);
    RETURN(0);
}
KEPT static int burn_and_rest(void) { double until = now() + 0.02; while (now() < until) {} pause_for(80); RETURN(0); }

struct way { const char *name; int (*wait)(void); };
static const struct way ways[] = {
    {"wait_sleep", wait_sleep}, {"wait_lock", wait_lock}, {"wait_semaphore", wait_semaphore},
    {"wait_fifo", wait_fifo}, {"wait_socket", wait_socket}, {"wait_poll", wait_poll},
    {"wait_epoll", wait_epoll}, {"wait_child", wait_child}, {"wait_condition", wait_condition},
    {"burn_and_rest", burn_and_rest},
};
#define WAYS (sizeof ways / sizeof *ways)

static void *go(void *given) {
    const struct way *way = given;
    double waited = 0;
    int waits = 0, errors = 0;
    while (now() < end) {
        double before = now();
        errors += way->wait() != 0;
        waited += now() - before;
        waits += 1;
        if (way->wait == wait_lock) pause_for(5);
    }
    printf("%s seconds=%f waits=%d errors=%d\n", way->name, waited, waits, errors);
    fflush(stdout);
    return NULL;
}

/* Holds the lock for 45 of 50 ms, and lets the others go on. */
static void *give(void *unused) {
    while (now() < end + 0.2) {
        pthread_mutex_lock(&lock);
        pause_for(45);
        pthread_mutex_unlock(&lock);
        sem_post(&semaphore);
        if (write(fifo[1], "x", 1) != 1 || write(sockets[1], "x", 1) != 1) return unused;
        pause_for(5);
    }
    return NULL;
}

int main(int count, char **arguments) {
    end = now() + (count > 1 ? atof(arguments[1]) : 10);
    watched = epoll_create1(0);
    if (sem_init(&semaphore, 0, 0) || pipe(fifo) || pipe(polled) || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets)) return 1;
    struct epoll_event event = {.events = EPOLLIN};
    if (watched < 0 || epoll_ctl(watched, EPOLL_CTL_ADD, polled[0], &event)) return 1;
    pthread_t threads[WAYS + 1];
    pthread_create(&threads[WAYS], NULL, give, NULL);
    for (size_t i = 0; i < WAYS; i++) pthread_create(&threads[i], NULL, go, (void *)&ways[i]);
    for (size_t i = 0; i <= WAYS; i++) pthread_join(threads[i], NULL);
    return 0;
}

/* execs_later SECONDS: two children wait for so long and then execute another program, which sleeps for as
 * long. One does it in its only thread, the other in a second thread while the first one waits too. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *seconds;

static __attribute__((noinline)) void waits_before(void) {
    struct timespec time = {atoi(seconds), 0};
    while (nanosleep(&time, &time) != 0) {}
    __asm__ volatile("" ::: "memory");
}

static void *executes(void *unused) {
    waits_before();
    execlp("sleep", "sleep", seconds, (char *)NULL);
    return unused;
}

static __attribute__((noinline)) void rests_beside(void) {
    for (;;) pause();
}

static void child(const char *way) {
    printf("%s %d\n", way, getpid());
    fflush(stdout);
    if (strcmp(way, "leader") == 0) {
        executes(NULL);
    } else {
        pthread_t thread;
        pthread_create(&thread, NULL, executes, NULL);
        rests_beside();
    }
    _exit(1);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    seconds = argv[1];
    static const char *ways[] = {"leader", "other"};
    for (int way = 0; way < 2; way++)
        if (fork() == 0) child(ways[way]);
    while (wait(NULL) > 0) {}
}

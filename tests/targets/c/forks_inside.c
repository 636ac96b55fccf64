/* A library that makes any program fork without end, while its other threads do what they do: to be
 * preloaded. Every second child executes a program, the others end at once. What a child's end should be
 * and is not is printed, and how many there were.
 * The variable STRATA_TEST_FORKS is the time between two, in milliseconds; without it, nothing happens. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static useconds_t pause_of_forks;

static void *fork_always(void *unused) {
    (void)unused;
    for (unsigned long forks = 1;; forks++) {
        pid_t child = fork();
        if (child == 0) {
            unsetenv("LD_PRELOAD");
            if (forks % 2 == 0) execl("/bin/true", "true", (char *)NULL);
            _exit(0);
        }
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
            printf("failure of fork %lu: child %d, status %#x\n", forks, (int)child, (unsigned)status);
            fflush(stdout);
        } else if (forks % 10 == 0) {
            printf("forks %lu\n", forks);
            fflush(stdout);
        }
        usleep(pause_of_forks);
    }
    return NULL;
}

__attribute__((constructor)) static void start(void) {
    const char *milliseconds = getenv("STRATA_TEST_FORKS");
    pthread_t thread;
    if (!milliseconds) return;
    pause_of_forks = (useconds_t)atoi(milliseconds) * 1000;
    pthread_create(&thread, NULL, fork_always, NULL);
}

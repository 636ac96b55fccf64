/* Its main thread ends; one of the others burns, and one waits. */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static volatile unsigned long sum;

__attribute__((noinline)) static void burns(void) {
    for (;;) sum += 1;
}

static void *works(void *unused) {
    burns();
    return unused;
}

__attribute__((noinline)) static void rests(void) {
    for (;;) {
        pause();
        sum += 1;
    }
}

static void *waits(void *unused) {
    rests();
    return unused;
}

int main(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, works, NULL) != 0) return 1;
    if (pthread_create(&thread, NULL, waits, NULL) != 0) return 1;
    printf("ready\n");
    fflush(stdout);
    pthread_exit(NULL);
}

/* odd_states SECONDS: processes that are stopped by a tracer, wait for a child of vfork, execute
 * themselves again and again, start and end threads, and a hundred in PID namespaces of their own.
 * Prints "WAY PID" of each, and at the end "executes elapsed=S" with what the one that executes itself
 * lived by its own clock. */
#define _GNU_SOURCE
#include "burn.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NAMESPACES 100

static void pause_for(double seconds) {
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
    __asm__ volatile("");
}

static int arrived[2];
NOINLINE static void is_traced(double seconds) {
    if (write(arrived[1], "x", 1) != 1) _exit(1);
    pause_for(seconds);
    __asm__ volatile("");
}
NOINLINE static void rests_in_namespace(double seconds) { pause_for(seconds); __asm__ volatile(""); }
NOINLINE static void waits_for_vfork(double seconds) {
    /* The child has its parent's stack: it changes as little of it as possible. */
    static struct timespec time;
    time.tv_sec = (time_t)seconds;
    pid_t child = vfork();
    if (child == 0) {
        syscall(SYS_nanosleep, &time, NULL);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    __asm__ volatile("");
}
NOINLINE static void executes_itself(const char *began, double seconds) {
    pause_for(0.03);
    char *self = "/proc/self/exe", length[32];
    snprintf(length, sizeof length, "%f", seconds);
    execl(self, "odd_states", length, began, (char *)NULL);
}
NOINLINE static void *lives_shortly(void *unused) { pause_for(0.02); return unused; }

static pid_t child(const char *way, pid_t pid) {
    if (pid > 0) {
        printf("%s %d\n", way, pid);
        fflush(stdout);
    }
    return pid;
}

int main(int argc, char **argv) {
    double seconds = seconds_argument(argc, argv, 1, 5), now = target_now();
    if (argc > 2) {
        double began = atof(argv[2]);
        if (now - began < seconds) executes_itself(argv[2], seconds);
        printf("executes elapsed=%f\n", target_now() - began);
        return 0;
    }
    char byte;
    if (pipe(arrived)) return 1;
    pid_t traced = child("traced", fork());
    if (traced == 0) { is_traced(seconds); _exit(0); }
    if (read(arrived[0], &byte, 1) != 1) return 1;
    if (ptrace(PTRACE_SEIZE, traced, NULL, NULL) || ptrace(PTRACE_INTERRUPT, traced, NULL, NULL)) return 2;
    if (child("vfork", fork()) == 0) { waits_for_vfork(seconds); _exit(0); }
    if (child("executes", fork()) == 0) {
        char began[32];
        snprintf(began, sizeof began, "%f", target_now());
        executes_itself(began, seconds);
        _exit(1);
    }
    for (int i = 0; i < NAMESPACES; i++) {
        /* As fork, in a new namespace of PIDs. */
        pid_t pid = (pid_t)syscall(SYS_clone, (long)(CLONE_NEWPID | SIGCHLD), NULL, NULL, NULL, 0L);
        if (pid < 0) return 3;
        if (child("namespace", pid) == 0) { rests_in_namespace(seconds); _exit(0); }
    }
    while (target_now() - now < seconds) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, lives_shortly, NULL)) return 4;
        pthread_join(thread, NULL);
    }
    kill(traced, SIGKILL);
    while (waitpid(-1, NULL, __WALL) > 0 || errno == EINTR) {}
    return 0;
}

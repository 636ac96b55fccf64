/* waits_served SECONDS: two seconds after its start, threads wait for what another thread or the kernel does:
 * accept, a page fault that is answered after a while (userfaultfd), a child, a lock that is held for long, a
 * file lock. At its end it prints "NAME seconds=S waits=N errors=E", as `waits` does. */
#define _GNU_SOURCE
#include "waits.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 4096 };

static double begin, end;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int listener, faults;
static struct sockaddr_in address = {.sin_family = AF_INET};
static volatile char *pages;
static char file[] = "/tmp/strata-test-XXXXXX";

KEPT static int wait_accept(void) {
    int connection = accept(listener, NULL, NULL);
    RETURN(connection < 0 || close(connection) != 0);
}

KEPT static int wait_fault(void) {
    static int page;
    char is = pages[(size_t)page * PAGE];
    page = (page + 1) % PAGES;
    RETURN(is != 0);
}

KEPT static int wait_child(void) {
    pid_t child = fork();
    if (child == 0) { pause_for(90); _exit(0); }
    RETURN(child < 0 || waitpid(child, NULL, 0) != child);
}

KEPT static int wait_lock(void) { RETURN(pthread_mutex_lock(&lock)); }

KEPT static int wait_file_lock(void) {
    int own = open(file, O_RDWR);
    int failed = own < 0 || flock(own, LOCK_EX) != 0;
    RETURN(failed || close(own) != 0);
}

KEPT static void wait_for_begin(void) { while (now() < begin) pause_for(100); }

struct way { const char *name; int (*wait)(void); };
static const struct way ways[] = {
    {"wait_accept", wait_accept}, {"wait_fault", wait_fault}, {"wait_child", wait_child},
    {"wait_lock", wait_lock}, {"wait_file_lock", wait_file_lock},
};
#define WAYS (sizeof ways / sizeof *ways)

static void *go(void *given) {
    const struct way *way = given;
    double waited = 0;
    int waits = 0, errors = 0;
    wait_for_begin();
    while (now() < end) {
        double before = now();
        errors += way->wait() != 0;
        waited += now() - before;
        waits += 1;
        if (way->wait == wait_lock) pthread_mutex_unlock(&lock);
        /* What holds it has it again meanwhile. */
        if (way->wait == wait_lock || way->wait == wait_file_lock) pause_for(4);
    }
    printf("%s seconds=%f waits=%d errors=%d\n", way->name, waited, waits, errors);
    fflush(stdout);
    return NULL;
}

static void *connects(void *unused) {
    wait_for_begin();
    while (now() < end + 0.3) {
        pause_for(50);
        int own = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(own, (struct sockaddr *)&address, sizeof address)) return unused;
        close(own);
    }
    return NULL;
}

static void *answers_faults(void *unused) {
    struct uffd_msg message;
    while (read(faults, &message, sizeof message) == sizeof message) {
        pause_for(50);
        struct uffdio_zeropage zero = {.range = {message.arg.pagefault.address & ~(PAGE - 1ULL), PAGE}};
        if (ioctl(faults, UFFDIO_ZEROPAGE, &zero)) return unused;
    }
    return NULL;
}

/* Holds a lock for 400 ms and lets the other have it for 2. */
static void *holds(void *unused) {
    while (now() < end + 0.5) {
        pthread_mutex_lock(&lock);
        pause_for(400);
        pthread_mutex_unlock(&lock);
        pause_for(2);
    }
    return unused;
}

static void *holds_file(void *unused) {
    int own = open(file, O_RDWR);
    while (now() < end + 0.5) {
        if (flock(own, LOCK_EX)) return unused;
        pause_for(400);
        flock(own, LOCK_UN);
        pause_for(2);
    }
    return NULL;
}

static int prepare(void) {
    socklen_t length = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, length) || listen(listener, 8)) return 1;
    if (getsockname(listener, (struct sockaddr *)&address, &length)) return 2;
    faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API};
    if (faults < 0 || ioctl(faults, UFFDIO_API, &api)) return 3;
    pages = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register range = {.range = {(unsigned long)pages, (unsigned long)PAGES * PAGE},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (pages == MAP_FAILED || ioctl(faults, UFFDIO_REGISTER, &range)) return 4;
    int made = mkstemp(file);
    return made < 0 || close(made) ? 5 : 0;
}

int main(int count, char **arguments) {
    int failed = prepare();
    if (failed) return failed;
    /* By then a profiler that has started it knows its code. */
    begin = now() + 2;
    end = begin + (count > 1 ? atof(arguments[1]) : 10);
    void *(*others[])(void *) = {connects, answers_faults, holds, holds_file};
    pthread_t other, threads[WAYS];
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) pthread_create(&other, NULL, others[i], NULL);
    for (size_t i = 0; i < WAYS; i++) pthread_create(&threads[i], NULL, go, (void *)&ways[i]);
    for (size_t i = 0; i < WAYS; i++) pthread_join(threads[i], NULL);
    unlink(file);
    return 0;
}

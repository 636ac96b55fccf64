/* Runs code that it has written itself, and lies about it in a perf map of 64 MB that it writes anew
 * every few seconds.
 * usage: perf_maps MODE SECONDS
 *
 * `rewritten`: the same file is made empty and filled again. `replaced`: another takes its place.
 * `foreign`: the file belongs to another user. `locked`: it has every lock and lease that there is,
 * and so has the program. */
#define _GNU_SOURCE
#include "burn.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>

#define MAP_BYTES (64UL << 20)
#define CODE_BYTES (1UL << 20)
#define PAUSE_SECONDS 5

/* mov $imm32,%rcx; dec %rcx; jnz; ret */
static const uint8_t LOOP[] = {0x48, 0xc7, 0xc1, 0x00, 0x00, 0x20, 0x00, 0x48, 0xff, 0xc9, 0x75, 0xfb, 0xc3};

static uint8_t *code;

static void *burn(void *unused) {
    (void)unused;
    for (size_t at = 0;; at = (at + 4096) % CODE_BYTES) {
        ((void (*)(void))(code + at))();
        usleep(5000);
    }
    return NULL;
}

static char path[64], other[80];

static int is(const char *mode, const char *one) { return strcmp(mode, one) == 0; }

static void fill(int fd) {
    static char text[1 << 20];
    static unsigned long number;
    for (size_t written = 0; written < MAP_BYTES;) {
        size_t length = 0;
        while (length < sizeof text - 128) {
            number++;
            length += (size_t)sprintf(text + length, "%lx %x function_%lu_with_a_name_that_no_other_one_has\n",
                                      (unsigned long)(uintptr_t)code + number * 4096 % CODE_BYTES, 4096, number);
        }
        if (write(fd, text, length) != (ssize_t)length) return;
        written += length;
    }
}

static void lock_all(int fd) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    flock(fd, LOCK_EX);
    fcntl(fd, F_OFD_SETLK, &lock);
    /* Who opens it waits for the lease to be given back, unless it asks not to wait. */
    fcntl(fd, F_SETLEASE, F_WRLCK);
}

static void remove_map(void) { unlink(path); }

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: perf_maps MODE SECONDS\n");
        return 2;
    }
    const char *mode = argv[1];
    double end = target_now() + seconds_argument(argc, argv, 2, 10);
    signal(SIGIO, SIG_IGN);
    snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
    snprintf(other, sizeof other, "%s.new", path);
    atexit(remove_map);
    code = mmap(NULL, CODE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) return 1;
    for (size_t at = 0; at < CODE_BYTES; at += 4096) memcpy(code + at, LOOP, sizeof LOOP);
    if (mprotect(code, CODE_BYTES, PROT_READ | PROT_EXEC) != 0) return 1;
    int program = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (is(mode, "locked")) flock(program, LOCK_EX);
    pthread_t thread;
    pthread_create(&thread, NULL, burn, NULL);
    printf("ready\n");
    fflush(stdout);
    int fd = -1;
    while (target_now() < end) {
        if (is(mode, "replaced") && fd >= 0) {
            close(fd);
            fd = -1;
        }
        if (fd < 0) {
            fd = open(is(mode, "replaced") ? other : path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
            if (fd < 0) return 1;
            if (is(mode, "foreign") && fchown(fd, 65534, 65534) != 0) return 1;
            if (is(mode, "locked")) lock_all(fd);
        }
        if (ftruncate(fd, 0) != 0 || lseek(fd, 0, SEEK_SET) != 0) return 1;
        fill(fd);
        if (is(mode, "replaced") && rename(other, path) != 0) return 1;
        sleep(PAUSE_SECONDS);
    }
    report_cpu("perf_maps");
    return 0;
}

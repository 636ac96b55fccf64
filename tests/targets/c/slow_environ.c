/* Many processes of one user whose memory is locked nearly all the time: reading the environment of one
 * takes as long as the server of a file takes for a write.
 * usage: slow_environ FOLDER COUNT USER SECONDS
 *
 * Each maps a file of its own in the folder (file0, file1, …), writes to it, and maps it again at the
 * same place: before, the kernel writes the file back, under the lock of the process's memory
 * (fuse_vma_close in fs/fuse/file.c, vms_clean_up_area in mm/vma.c of Linux 6.18). It has used the CPU
 * for some milliseconds when the parent says "ready". */
#define _GNU_SOURCE
#include "burn.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>

enum { PAGE = 4096 };

static void fail(const char *what) {
    perror(what);
    _exit(1);
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    int count = atoi(argv[2]), ready[2];
    uid_t user = (uid_t)atoi(argv[3]);
    unsigned seconds = (unsigned)atoi(argv[4]);
    if (pipe(ready) < 0) fail("pipe");
    for (int i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/file%d", argv[1], i);
        int file = open(path, O_RDWR | O_CLOEXEC);
        if (file < 0) fail(path);
        pid_t child = fork();
        if (child < 0) fail("fork");
        if (child > 0) {
            close(file);
            continue;
        }
        if (setresuid(user, user, user) < 0) fail("setresuid");
        /* A change of user would clear it. */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0) fail("prctl");
        double until = target_now() + 0.005;
        uint64_t units = 0;
        while (target_now() < until) units += burn_units(10);
        void *place = NULL;
        for (int first = 1;; first = 0) {
            int fixed = place ? MAP_FIXED : 0;
            place = mmap(place, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | fixed, file, 0);
            if (place == MAP_FAILED) fail("mmap");
            *(volatile char *)place = 1;
            if (first && write(ready[1], &units, 1) != 1) fail("write");
        }
    }
    for (int i = 0; i < count; i++) {
        char one;
        if (read(ready[0], &one, 1) != 1) fail("read");
    }
    printf("ready\n");
    fflush(stdout);
    sleep(seconds);
    return 0;
}

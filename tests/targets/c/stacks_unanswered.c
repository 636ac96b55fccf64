/* stacks_unanswered FILE COUNT: COUNT threads wait for ever with their stack pointers in pages of a private
 * mapping of a file that they have never touched, and as many in memory of a userfaultfd that is not answered. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096 };

static void *waits_there(void *stack) {
    /* pause(2): the kernel does not touch the stack of a thread that waits. */
    __asm__ volatile("mov %0, %%rsp\n\tmov $34, %%eax\n\tsyscall\n\tud2" ::"r"((char *)stack + 1024) : "memory");
    return stack;
}

static char *pages_of(int file, int count) {
    int flags = MAP_PRIVATE | (file < 0 ? MAP_ANONYMOUS : 0);
    char *pages = mmap(NULL, (size_t)count * PAGE, PROT_READ | PROT_WRITE, flags, file, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    int count = atoi(argv[2]), file = open(argv[1], O_RDONLY);
    char *of_file = pages_of(file, count), *unanswered = pages_of(-1, count);
    int faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register range = {.range = {(unsigned long)unanswered, (unsigned long)count * PAGE},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (file < 0 || !of_file || !unanswered || faults < 0) return 1;
    if (ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &range)) return 1;
    for (int i = 0; i < 2 * count; i++) {
        pthread_t thread;
        char *stack = (i & 1 ? unanswered : of_file) + (size_t)(i / 2) * PAGE;
        if (pthread_create(&thread, NULL, waits_there, stack)) return 1;
    }
    usleep(200000);
    printf("ready\n");
    fflush(stdout);
    for (;;) pause();
}

/* stack_on_file FILE: one thread waits for ever with its stack pointer in a private mapping of a file,
 * in a page that it has never touched; another one waits for ever on a usual stack. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static char *stack;

static void *waits_on_file(void *unused) {
    printf("ready\n");
    fflush(stdout);
    /* pause(2): the kernel does not touch the stack of a thread that waits. */
    __asm__ volatile("mov %0, %%rsp\n\tmov $34, %%eax\n\tsyscall\n\tud2" ::"r"(stack + 1024) : "memory");
    return unused;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    int file = open(argv[1], O_RDONLY);
    stack = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    if (file < 0 || stack == MAP_FAILED) return 1;
    pthread_t thread;
    pthread_create(&thread, NULL, waits_on_file, NULL);
    for (;;) pause();
}

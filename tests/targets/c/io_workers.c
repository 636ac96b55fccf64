/* io_workers [seconds]: reads /dev/zero by io_uring, with all work left to the kernel's workers, which are threads
 * of this process that never run any code of it. Ends with 77 where the kernel allows no io_uring. */
#define _GNU_SOURCE
#include "burn.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define AT(base, offset) ((unsigned *)((char *)(base) + (offset)))
enum { LENGTH = 64 << 20 };

int main(int argc, char **argv) {
    struct io_uring_params ring;
    memset(&ring, 0, sizeof ring);
    int fd = (int)syscall(SYS_io_uring_setup, 4, &ring);
    if (fd < 0) return 77;
    int zero = open("/dev/zero", O_RDONLY), both = PROT_READ | PROT_WRITE;
    char *buffer = mmap(NULL, LENGTH, both, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    void *submitted = mmap(NULL, 4096, both, MAP_SHARED, fd, IORING_OFF_SQ_RING);
    void *completed = mmap(NULL, 4096, both, MAP_SHARED, fd, IORING_OFF_CQ_RING);
    struct io_uring_sqe *entries = mmap(NULL, 4096, both, MAP_SHARED, fd, IORING_OFF_SQES);
    if (zero < 0 || buffer == MAP_FAILED || submitted == MAP_FAILED || completed == MAP_FAILED) return 1;
    double end = target_now() + seconds_argument(argc, argv, 1, 60);
    while (target_now() < end) {
        unsigned tail = *AT(submitted, ring.sq_off.tail), index = tail & *AT(submitted, ring.sq_off.ring_mask);
        memset(&entries[index], 0, sizeof *entries);
        entries[index].opcode = IORING_OP_READ;
        entries[index].flags = IOSQE_ASYNC;
        entries[index].fd = zero;
        entries[index].addr = (uint64_t)(uintptr_t)buffer;
        entries[index].len = LENGTH;
        AT(submitted, ring.sq_off.array)[index] = index;
        __atomic_store_n(AT(submitted, ring.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
        while (syscall(SYS_io_uring_enter, fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
            if (errno != EINTR) return 1;
        unsigned *head = AT(completed, ring.cq_off.head);
        __atomic_store_n(head, __atomic_load_n(AT(completed, ring.cq_off.tail), __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
    }
    report_cpu("io_workers");
    return 0;
}

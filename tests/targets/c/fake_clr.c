/* Looks like a .NET process that strata's library is loaded in, and is hostile in one of many ways.
 * usage: fake_clr MODE SECONDS [SOCKET]
 *
 * It maps a file called libcoreclr.so, makes a diagnostics socket in its TMPDIR, and memory files by the
 * names of the library's. All the while a thread of it uses the CPU in hostile_burn: whatever strata
 * makes of the rest, those samples must be there.
 *
 * MODE    honest     an empty log of the right form
 *         random     right headers, random bytes behind them
 *         all-random random bytes everywhere
 *         changing   right headers, and what is behind them changes all the time
 *         counts     lengths, counts and positions as large as they can be
 *         cycles     types that are made of themselves, records without length
 *         millions   as many records as fit
 *         stuck      a record that is never finished
 *         overlaps   methods that claim the kernel, the whole address space and each other's code
 *         holes      right, but with holes punched into it all the time
 *         shrinking  not sealed, and changes its size all the time
 *         hugetlb    of huge pages that do not exist
 *         file       on another device
 *         mains      thousands of files that all say they are the first
 *         locked     owned by somebody who never leaves
 *         units      methods of 16 MiB each, all over the address space
 *         rows       methods whose code moves the stack pointer with every instruction
 *         churn      methods that take each other's place without end
 *         names      one stub with names as long as they can be, and stacks of a thousand addresses in it
 *         many-names thousands of such stubs, each with names of its own, and stacks through a thousand of them
 * SOCKET  none, silent (never accepts), mute (accepts, never answers), nonsense, flood, huge
 *
 * The layout is that of clr-bridge/layout, version 1; here it is written down a second time on purpose. */
#define _GNU_SOURCE
#include "burn.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

enum {
    MAIN_SIZE = 2 << 20,
    SEGMENT_SIZE = 4 << 20,
    SEGMENTS = 64,
    STATUS = 4 * 4096,
    STATUS_COMMITTED = STATUS + 1024,
    ANSWERS = 5 * 4096,
    RING_HEAD = 6 * 4096,
    SEGMENT_DATA = 128,
    SEGMENT_TAIL = 64,
    ALL_SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW,
    MODULE = 3,
    TYPE = 5,
    METHOD = 6,
    THREAD_END = 11,
    ENUMERATED = 13,
    RESERVED = 1,
    COMMITTED = 2,
    END = 3,
};

static const uint8_t ID[16] = "a hostile memory";
static uint64_t seed = 88172645463325252UL;

static uint64_t random_word(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

struct shared {
    int fd;
    uint8_t *bytes;
    size_t size;
    /* Where the main file has the length of this segment's readable part. */
    uint8_t *committed;
};

static struct shared make(const char *name, size_t size, unsigned seals, unsigned flags) {
    struct shared s = {.fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags), .size = size};
    if (s.fd < 0) fail("memfd_create");
    if (ftruncate(s.fd, (off_t)size) < 0) fail("ftruncate");
    if (seals && fcntl(s.fd, F_ADD_SEALS, seals) < 0) fail("F_ADD_SEALS");
    /* Huge pages need not exist to be mapped, only to be touched. */
    s.bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | (flags ? MAP_NORESERVE : 0), s.fd, 0);
    if (s.bytes == MAP_FAILED) fail("mmap");
    return s;
}

static void put(uint8_t *at, uint64_t value, size_t size) { memcpy(at, &value, size); }

static void fill_random(uint8_t *from, uint8_t *to) {
    for (; from + 8 <= to; from += 8) put(from, random_word(), 8);
}

static void main_header(uint8_t *m) {
    static const uint32_t numbers[] = {64, 256, 4096, 64, 16384, 64, 4096, 8192, 16384, 20480, 65536, 24576, 327680, 458752};
    memcpy(m, "STRTCLR", 8);
    put(m + 8, 1, 4);
    put(m + 12, 128, 4);
    put(m + 16, MAIN_SIZE, 8);
    memcpy(m + 24, ID, 16);
    put(m + 40, SEGMENT_SIZE, 8);
    memcpy(m + 48, numbers, sizeof numbers);
}

static void status(uint8_t *m, uint64_t segments) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    put(m + STATUS, 1, 8); /* ready */
    put(m + STATUS + 8, (uint64_t)getpid(), 8);
    put(m + STATUS + 16, (uint64_t)now.tv_sec * 1000000000UL, 8);
    put(m + STATUS + 24, 9, 2);
    put(m + STATUS + 32, 15, 8);
    put(m + STATUS + 40, segments, 8);
    strcpy((char *)m + STATUS + 64, "9.0.7");
    strcpy((char *)m + STATUS + 128, "strata 0.1.0");
}

static void segment_header(uint8_t *s, unsigned number) {
    memcpy(s, "STRTLOG", 8);
    put(s + 8, 1, 4);
    put(s + 12, number, 4);
    memcpy(s + 16, ID, 16);
    put(s + 32, SEGMENT_SIZE, 8);
    put(s + SEGMENT_TAIL, SEGMENT_DATA, 8);
}

/* Records. */

static uint8_t record[1 << 17];
static size_t length;

static void number(uint64_t value, size_t size) {
    put(record + length, value, size);
    length += size;
}

static void bytes(const void *from, size_t size) {
    number(size, 2);
    memcpy(record + length, from, size);
    length += size;
}

static void text(const char *from) { bytes(from, strlen(from)); }

/* Appends the record to a segment; 0 when it is full. */
static int append_as(struct shared *segment, unsigned kind, unsigned state, uint32_t claimed) {
    uint64_t tail;
    memcpy(&tail, segment->bytes + SEGMENT_TAIL, 8);
    size_t whole = (16 + length + 7) & ~7UL;
    if (tail + whole > SEGMENT_SIZE) return 0;
    memcpy(segment->bytes + tail + 16, record, length);
    put(segment->bytes + tail + 8, 1, 8);
    put(segment->bytes + tail, (claimed ? claimed : whole) | (uint64_t)kind << 32 | (uint64_t)state << 56, 8);
    put(segment->bytes + SEGMENT_TAIL, tail + whole, 8);
    put(segment->committed, tail + whole - SEGMENT_DATA, 8);
    length = 0;
    return 1;
}

static int append(struct shared *segment, unsigned kind) { return append_as(segment, kind, COMMITTED, 0); }

static void a_module(struct shared *segment, uint64_t module, uint64_t base, uint32_t size) {
    number(module, 8), number(1, 8), number(base, 8), number(size, 4);
    memset(record + length, 7, 16), length += 16;
    number(0xffffffff, 4), text("Hostile"), text("/proc/self/root/../../etc/passwd");
    append(segment, MODULE);
}

static int a_method(struct shared *segment, uint64_t function, uint32_t type, const char *name, const void *signature,
                    size_t signature_size, uint64_t start, uint32_t size) {
    number(function, 8), number(0, 8), number(1, 8), number(type, 4), number(0x06000001, 4);
    number(0, 1), number(2, 1), number(1, 8), text(name), number(0, 2);
    bytes(signature, signature_size), number(0, 2), number(0, 2), number(0, 8);
    number(1, 2), number(start, 8), number(size, 4), bytes("\x55\x48\x89\xe5", 4);
    return append(segment, METHOD);
}

static int a_method_of(struct shared *segment, uint64_t function, uint64_t start, uint32_t size, const void *code,
                       size_t code_size) {
    number(function, 8), number(0, 8), number(1, 8), number(0x02000001, 4), number(0x06000001, 4);
    number(0, 1), number(2, 1), number(1, 8), text("M"), number(0, 2);
    bytes("", 0), number(0, 2), number(0, 2), number(0, 8);
    number(1, 2), number(start, 8), number(size, 4), bytes(code, code_size);
    return append(segment, METHOD);
}

static void enumerated(struct shared *segment) {
    number(1, 4);
    append(segment, ENUMERATED);
}

static void units(struct shared *segments, int count) {
    uint64_t start = 1UL << 32;
    for (int i = 0; i < count; i++) {
        if (i == 0) enumerated(&segments[i]);
        while (a_method_of(&segments[i], start, start, 16 << 20, "\x55\x48\x89\xe5", 4)) start += 16 << 20;
        length = 0;
    }
}

static void rows(struct shared *segments, int count) {
    /* push rax, push rcx, pop rcx, pop rax: in another order for each method. */
    static const uint8_t moves[] = {0x50, 0x51, 0x59, 0x58};
    static uint8_t code[4000];
    uint64_t start = 1UL << 32;
    for (int i = 0; i < count; i++) {
        if (i == 0) enumerated(&segments[i]);
        do {
            for (size_t at = 0; at < sizeof code; at++) code[at] = moves[random_word() % sizeof moves];
            start += sizeof code + 96;
        } while (a_method_of(&segments[i], start, start, sizeof code, code, sizeof code));
        length = 0;
    }
}

/* Methods that have arguments as long as they can be, all over memory that stacks lead through. */

enum { STUB_SIZE = 1 << 20, CHAIN = 1000 };
static uint8_t *stub;

/* push rbp; mov rbp, rsp; and, called with another frame pointer: 1: dec edi; jnz 1b; ret. */
static void make_stub(void) {
    stub = mmap(NULL, STUB_SIZE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stub == MAP_FAILED) fail("mmap");
    memcpy(stub, "\x55\x48\x89\xe5", 4);
    memcpy(stub + 16, "\xff\xcf\x75\xfc\xc3", 5);
}

static int a_stub(struct shared *segment, unsigned i, uint8_t *start, uint32_t size) {
    static char argument[1900];
    memset(argument, 'x', sizeof argument - 1);
    number(i + 1, 8), number(0, 8), number(1, 8), number(0, 4), number(0x06000001, 4);
    number(0, 1), number(2, 1), number(1, 8), text("IL_STUB_PInvoke"), number(0, 2);
    bytes("", 0), number(0, 2), number(64, 2);
    for (int at = 0; at < 64; at++) {
        int digits = snprintf(argument, sizeof argument, "Of%uAt%d", i, at);
        argument[digits] = 'x';
        text(argument);
    }
    number(0, 8), number(1, 2), number((uint64_t)(uintptr_t)start, 8), number(size, 4);
    bytes("\x55\x48\x89\xe5", 4);
    return append(segment, METHOD);
}

static void names(struct shared *segment) {
    make_stub();
    enumerated(segment);
    a_stub(segment, 0, stub, STUB_SIZE);
}

static void end_segment(struct shared *segment) {
    uint64_t tail;
    memcpy(&tail, segment->bytes + SEGMENT_TAIL, 8);
    if (tail < SEGMENT_SIZE) put(segment->bytes + tail, (SEGMENT_SIZE - tail) | (uint64_t)END << 56, 8);
    put(segment->committed, SEGMENT_SIZE - SEGMENT_DATA, 8);
}

static void many_names(struct shared *segments) {
    enum { EACH = 512, ALL = STUB_SIZE / EACH };
    make_stub();
    unsigned i = 0;
    for (int s = 0; s < SEGMENTS; s++) {
        if (s == 0) enumerated(&segments[s]);
        while (i < ALL && a_stub(&segments[s], i, stub + i * EACH, EACH)) i++;
        length = 0;
        if (i < ALL) end_segment(&segments[s]);
    }
    if (i < ALL) fail("too many names");
}

NOINLINE static void call_stub(void) {
    struct frame {
        struct frame *next;
        uint8_t *address;
    } chain[CHAIN];
    for (int i = 0; i < CHAIN; i++) {
        chain[i].next = i + 1 < CHAIN ? &chain[i + 1] : NULL;
        chain[i].address = stub + 64 + random_word() % (STUB_SIZE - 64);
    }
    uint64_t rounds = 3000000;
    /* Below what a function without calls may use. */
    __asm__ volatile("sub $128, %%rsp\n\tpush %%rbp\n\tmov %1, %%rbp\n\tcall *%2\n\tpop %%rbp\n\tadd $128, %%rsp"
                     : "+D"(rounds)
                     : "r"(chain), "r"(stub + 16)
                     : "memory", "cc");
}

/* What hostile_burn is made of: claimed by methods, too. */
NOINLINE uint64_t hostile_burn(uint64_t units) {
    uint64_t x = burn_units(units);
    KEEP_FRAME(x);
    return x;
}

static void *burn(void *unused) {
    (void)unused;
    for (;;) {
        hostile_burn(400);
        if (stub) call_stub();
        usleep(2000);
    }
    return NULL;
}

static void cycles(struct shared *segment) {
    /* A TypeSpec that is a generic instance of itself, twice; and one array of another in a ring. */
    static const uint8_t itself[] = {0x15, 0x12, 0x06, 2, 0x12, 0x06, 0x12, 0x06};
    a_module(segment, 1, 0, 0);
    number(1, 8), number(0x1b000001, 4), text(""), bytes(itself, sizeof itself), number(0, 2);
    append(segment, TYPE);
    for (uint8_t i = 0; i < 2; i++) {
        uint8_t other[] = {0x1d, 0x12, (uint8_t)((3 - i) << 2 | 2)};
        number(1, 8), number(0x1b000002 + i, 4), text(""), bytes(other, sizeof other), number(0, 2);
        append(segment, TYPE);
    }
    /* A signature of 4,000 nested pointers, and one of arguments without end. */
    uint8_t deep[4000], wide[] = {0x00, 0xdf, 0xff, 0xff, 0xff, 0x01};
    memset(deep, 0x0f, sizeof deep);
    deep[0] = 0, deep[1] = 1;
    uint64_t here = (uint64_t)(uintptr_t)hostile_burn;
    a_method(segment, 1, 0x1b000001, "Itself", itself, sizeof itself, here, 64);
    a_method(segment, 2, 0x1b000002, "Ring", wide, sizeof wide, here + 16, 64);
    a_method(segment, 3, 0x1b000003, "Deep", deep, sizeof deep, here + 32, 64);
    /* A record that is as long as nothing, and would be read for ever. */
    append_as(segment, THREAD_END, COMMITTED, 0xffffffff);
    append_as(segment, THREAD_END, COMMITTED, 8);
}

static void overlaps(struct shared *segment) {
    uint64_t here = (uint64_t)(uintptr_t)hostile_burn;
    a_module(segment, 1, 0xffffffff80000000UL, 0xffffffff);
    for (uint64_t i = 0; i < 3000; i++) {
        a_method(segment, i * 4, 0x02000001, "Everything", "", 0, 0, 0xffffffff);
        a_method(segment, i * 4 + 1, 0x02000001, "Kernel", "", 0, 0xffffffff81000000UL + i, 0xffffffff);
        a_method(segment, i * 4 + 2, 0x02000001, "Wraps", "", 0, ~0UL - i, 0xffffffff);
        a_method(segment, i * 4 + 3, 0x02000001, "Same", "", 0, here - i, 2 * (uint32_t)i + 1);
    }
}

static void counts(struct shared *m, struct shared *segments) {
    put(m->bytes + STATUS + 40, ~0UL, 8);
    memset(m->bytes + STATUS + 256, 0xff, 4096 - 256);
    memset(m->bytes + ANSWERS, 0xff, 4096);
    put(m->bytes + RING_HEAD, ~0UL >> 1, 8);
    for (int i = 0; i < 3; i++) {
        static const uint64_t tails[] = {~0UL, SEGMENT_SIZE + 8, 7};
        for (int f = 0; f < 100; f++) a_method(&segments[i], (uint64_t)f, 0x02000001, "M", "", 0, 0x1000, 16);
        memset(segments[i].bytes + SEGMENT_DATA + 16 + 50, 0xff, 64);
        put(segments[i].bytes + SEGMENT_TAIL, tails[i], 8);
    }
}

static void millions(struct shared *segments) {
    for (int i = 0; i < SEGMENTS; i++) {
        do number(random_word(), 8);
        while (append(&segments[i], THREAD_END));
        length = 0;
        end_segment(&segments[i]);
    }
}

/* What goes on while the program runs; called about a thousand times a second. */
static void disturb(const char *mode, struct shared *m, struct shared *segments, int count) {
    struct shared *s = &segments[random_word() % (uint64_t)count];
    if (strcmp(mode, "changing") == 0) {
        for (int i = 0; i < 200; i++) {
            put(m->bytes + 4096 + random_word() % (MAIN_SIZE - 8192), random_word(), 8);
            put(s->bytes + SEGMENT_TAIL + random_word() % 4096, random_word(), 8);
        }
    } else if (strcmp(mode, "holes") == 0) {
        off_t page = (off_t)(random_word() % 512) * 4096;
        fallocate(m->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, page, 4096);
        fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, page, 1 << 20);
        main_header(m->bytes);
        status(m->bytes, (uint64_t)count);
        segment_header(s->bytes, (unsigned)(s - segments));
    } else if (strcmp(mode, "churn") == 0) {
        static uint64_t function;
        for (int i = 0; i < 20; i++, function++) {
            if (!a_method_of(&segments[function / 30000 % (uint64_t)count], function, 1UL << 32, 4096, "\xc3", 1)) length = 0;
        }
    } else if (strcmp(mode, "shrinking") == 0) {
        off_t size = (off_t)(random_word() % 3) * 65536;
        if (ftruncate(m->fd, size) || ftruncate(s->fd, size)) fail("ftruncate");
        if (ftruncate(m->fd, MAIN_SIZE) || ftruncate(s->fd, SEGMENT_SIZE)) fail("ftruncate");
    }
}

/* The looks of a runtime. */

static void map_runtime(const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/libcoreclr.so", folder);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    if (fd < 0) fail(path);
    uint8_t page[8192];
    fill_random(page, page + sizeof page);
    memcpy(page, "\x7f" "ELF\2\1\1", 8);
    if (write(fd, page, sizeof page) != sizeof page) fail("write");
    if (mmap(NULL, sizeof page, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED) fail("mmap");
    close(fd);
}

static const char *how;
static char socket_path[4096];

static void remove_socket(void) { unlink(socket_path); }

static void *answer(void *argument) {
    int listener = (int)(intptr_t)argument;
    uint8_t junk[65536];
    for (;;) {
        int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (connection < 0) continue;
        if (strcmp(how, "mute") == 0) continue; /* and keeps it */
        fill_random(junk, junk + sizeof junk);
        if (strcmp(how, "huge") == 0) {
            /* An answer with a length of 65,535 bytes in its header, and no more. */
            memcpy(junk, "DOTNET_IPC_V1\0\xff\xff\xff\x00\0\0", 20);
            send(connection, junk, 20, MSG_NOSIGNAL);
            continue;
        }
        send(connection, junk, 4096, MSG_NOSIGNAL);
        while (strcmp(how, "flood") == 0 && send(connection, junk, sizeof junk, MSG_NOSIGNAL) > 0) continue;
        close(connection);
    }
    return NULL;
}

static void listen_in(const char *folder) {
    char line[4096];
    FILE *stat = fopen("/proc/self/stat", "re");
    if (!stat || !fgets(line, sizeof line, stat)) fail("/proc/self/stat");
    fclose(stat);
    /* The start time is field 22, the 20th after the name. */
    char *field = strrchr(line, ')');
    for (int i = 0; i < 20 && field; i++) field = strchr(field + 1, ' ');
    if (!field) fail("start time");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(socket_path, sizeof socket_path, "%s/dotnet-diagnostic-%d-%lu-socket", folder, getpid(),
             strtoul(field, NULL, 10));
    if (strlen(socket_path) >= sizeof address.sun_path) fail("a long TMPDIR");
    strcpy(address.sun_path, socket_path);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4)) fail("bind");
    atexit(remove_socket);
    pthread_t thread;
    if (strcmp(how, "silent") != 0) pthread_create(&thread, NULL, answer, (void *)(intptr_t)listener);
}

static int is(const char *mode, const char *one) { return strcmp(mode, one) == 0; }

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: fake_clr MODE SECONDS [SOCKET]\n");
        return 2;
    }
    const char *mode = argv[1];
    const char *folder = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
    double end = target_now() + seconds_argument(argc, argv, 2, 5);
    how = argc > 3 ? argv[3] : "none";
    map_runtime(folder);
    if (!is(how, "none")) listen_in(folder);

    static struct shared m, segments[SEGMENTS];
    int count = is(mode, "millions") || is(mode, "many-names") ? SEGMENTS : 3;
    unsigned seals = is(mode, "shrinking") ? 0 : ALL_SEALS;
    if (is(mode, "hugetlb")) {
        m = make("strata-clr", MAIN_SIZE, 0, MFD_HUGETLB);
        make("strata-clr-log", SEGMENT_SIZE, 0, MFD_HUGETLB);
        count = 0;
    } else if (is(mode, "file")) {
        /* /proc/PID/maps shows it as it shows a memfd. */
        int fd = open("/memfd:strata-clr", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0 || ftruncate(fd, MAIN_SIZE) < 0) fail("/memfd:strata-clr");
        m.bytes = mmap(NULL, MAIN_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        unlink("/memfd:strata-clr");
        if (m.bytes == MAP_FAILED) fail("mmap");
        main_header(m.bytes);
        count = 0;
    } else {
        m = make("strata-clr", MAIN_SIZE, seals, 0);
        main_header(m.bytes);
        status(m.bytes, (uint64_t)count);
        for (int i = 0; i < count; i++) {
            segments[i] = make("strata-clr-log", SEGMENT_SIZE, seals, 0);
            segment_header(segments[i].bytes, (unsigned)i);
            segments[i].committed = m.bytes + STATUS_COMMITTED + 8 * i;
        }
    }
    if (is(mode, "random") || is(mode, "all-random")) {
        int all = is(mode, "all-random");
        fill_random(m.bytes + (all ? 0 : STATUS + 192), m.bytes + MAIN_SIZE);
        for (int i = 0; i < count; i++) fill_random(segments[i].bytes + (all ? 0 : SEGMENT_DATA), segments[i].bytes + SEGMENT_SIZE);
        for (int i = 0; i < count && !all; i++) {
            put(segments[i].bytes + SEGMENT_TAIL, SEGMENT_SIZE, 8);
            put(segments[i].committed, SEGMENT_SIZE, 8);
        }
    } else if (is(mode, "changing") || is(mode, "holes")) {
        for (int i = 0; i < count; i++) overlaps(&segments[i]);
    } else if (is(mode, "counts")) {
        counts(&m, segments);
    } else if (is(mode, "cycles")) {
        cycles(&segments[0]);
    } else if (is(mode, "millions")) {
        millions(segments);
    } else if (is(mode, "stuck")) {
        number(1, 8);
        append_as(&segments[0], THREAD_END, RESERVED, 0);
        overlaps(&segments[0]);
    } else if (is(mode, "overlaps")) {
        overlaps(&segments[0]);
    } else if (is(mode, "mains")) {
        for (int i = 0; i < 4000; i++) {
            struct shared another = make("strata-clr", MAIN_SIZE, ALL_SEALS, 0);
            main_header(another.bytes);
            status(another.bytes, 0);
            close(another.fd);
        }
    } else if (is(mode, "units")) {
        units(segments, count);
    } else if (is(mode, "rows")) {
        rows(segments, count);
    } else if (is(mode, "churn")) {
        enumerated(&segments[0]);
    } else if (is(mode, "names")) {
        names(&segments[0]);
    } else if (is(mode, "many-names")) {
        many_names(segments);
    } else if (is(mode, "locked")) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
        if (fcntl(m.fd, F_OFD_SETLK, &lock) < 0) fail("F_OFD_SETLK");
        for (int i = 0; i < count; i++) {
            if (fcntl(segments[i].fd, F_OFD_SETLK, &lock) < 0) fail("F_OFD_SETLK of a segment");
            if (flock(segments[i].fd, LOCK_EX) < 0) fail("flock of a segment");
        }
    } else if (!is(mode, "honest") && !is(mode, "shrinking") && count != 0) {
        fprintf(stderr, "no mode %s\n", mode);
        return 2;
    }
    pthread_t thread;
    pthread_create(&thread, NULL, burn, NULL);
    printf("ready\n");
    fflush(stdout);
    while (target_now() < end) {
        if (count > 0) disturb(mode, &m, segments, count);
        usleep(1000);
    }
    report_cpu("fake_clr");
    return 0;
}

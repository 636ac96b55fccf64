/* A library that makes a .NET program with strata's bridge hostile: to be preloaded. Threads of it call
 * the bridge's function that a probe of strata is at, as fast as they can.
 * The variable STRATA_TEST_PRETENDS is how:
 *
 *     words   random blocks of the right length
 *     counts  kinds that exist, with weights, values and lengths as large as they can be
 *     edges   blocks at the end of readable memory, and at addresses that are none
 *     names   another type and another message in each, as long as they can be
 *     memory  as words, and random words all over the memory that the bridge shares with strata
 *
 * It prints the number of calls. The layout is that of `clr_event` in the bridge's protocol, written down
 * a second time on purpose. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOCK_BYTES = 512, TEXT = 24, MAX_TYPE = 256, FIRST_KIND = 3, KINDS = 6, THREADS = 2, MOST_SHARED = 256 };

static const char *how;
static _Atomic unsigned long calls;

static uint64_t random_word(uint64_t *seed) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    return *seed ^= *seed << 17;
}

struct range {
    uint8_t *start, *end;
};

/* The process's mappings with this in their lines; how many, `most` at most. */
static int find(const char *name, const char *permission, struct range *ranges, int most) {
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[4096];
    int count = 0;
    while (maps && count < most && fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        if (!strstr(line, name) || !strstr(line, permission)) continue;
        if (sscanf(line, "%lx-%lx", &start, &end) != 2) continue;
        ranges[count++] = (struct range){(uint8_t *)start, (uint8_t *)end};
    }
    if (maps) fclose(maps);
    return count;
}

typedef void (*event_function)(const void *block);

static event_function find_function(void) {
    static const char code[] = "\x90\xc3strata-event-1";
    struct range text[16];
    int count = find("/.strata-clr-", " r-xp ", text, 16);
    for (int i = 0; i < count; i++) {
        void *found = memmem(text[i].start, (size_t)(text[i].end - text[i].start), code, sizeof code - 1);
        if (found) return (event_function)found;
    }
    return NULL;
}

static void fill(uint64_t *block, uint64_t *seed) {
    for (int i = 0; i < BLOCK_BYTES / 8; i++) block[i] = random_word(seed);
    uint64_t kind = FIRST_KIND + random_word(seed) % KINDS;
    if (strcmp(how, "counts") == 0) {
        block[0] = kind | 0xffffffffffffff00UL;
        block[1] = ~0UL;
        block[2] = random_word(seed) % 2 ? ~0UL : 0xffffffff00000000UL;
    } else if (strcmp(how, "names") == 0) {
        uint64_t message = BLOCK_BYTES - TEXT - MAX_TYPE;
        block[0] = kind | 1UL << 32;
        block[1] = 1000;
        block[2] = MAX_TYPE | message << 16 | 64UL << 32;
        uint8_t *bytes = (uint8_t *)block;
        for (int i = TEXT; i < BLOCK_BYTES; i++) bytes[i] = (uint8_t)('!' + bytes[i] % 90);
    } else if (random_word(seed) % 2) {
        block[0] = (block[0] & ~0xffUL) | kind;
        block[2] &= 0xffffffff00ff00ffUL;
    }
}

static void scribble(uint64_t *seed) {
    static struct range shared[MOST_SHARED];
    static int count;
    if (count == 0) count = find("memfd:strata", " rw-s ", shared, MOST_SHARED);
    for (int i = 0; i < 64 && count > 0; i++) {
        struct range *one = &shared[random_word(seed) % (uint64_t)count];
        uint64_t words = (uint64_t)(one->end - one->start) / 8;
        ((volatile uint64_t *)one->start)[random_word(seed) % words] = random_word(seed);
    }
}

static void *pretend(void *number) {
    uint64_t seed = 88172645463325252UL + (uint64_t)(uintptr_t)number;
    _Alignas(8) uint64_t block[BLOCK_BYTES / 8];
    event_function function;
    while (!(function = find_function())) usleep(20000);
    uint8_t *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(page + 4096, 4096);
    for (;;) {
        for (int i = 0; i < 1000; i++) {
            fill(block, &seed);
            const void *at = block;
            if (strcmp(how, "edges") == 0) {
                uint64_t space = random_word(&seed) % BLOCK_BYTES;
                memcpy(page + 4096 - space, block, space);
                at = random_word(&seed) % 4 ? page + 4096 - space : (const void *)random_word(&seed);
            }
            function(at);
        }
        if (strcmp(how, "memory") == 0) scribble(&seed);
        unsigned long all = atomic_fetch_add(&calls, 1000) + 1000;
        if (all % 100000 == 0) printf("calls %lu\n", all), fflush(stdout);
    }
    return NULL;
}

__attribute__((constructor)) static void start(void) {
    how = getenv("STRATA_TEST_PRETENDS");
    pthread_t thread;
    for (uintptr_t i = 0; how && i < THREADS; i++) pthread_create(&thread, NULL, pretend, (void *)i);
}

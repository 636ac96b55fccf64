/* A small CLR profiler, as a second one to live beside: it counts methods that are compiled, writes
 * the runtime's own view of every thread's stack when asked, and detaches when asked.
 *
 * STRATA_TEST_PROFILER (or the client data, when it is attached) names a file FILE. The counts are in
 * FILE, renewed ten times a second: "state NAME", "jit-started N", "jit-finished N", "modules N". A file
 * FILE.request with the word "snapshot" makes FILE.stacks, with "events" a session of the runtime's events,
 * with "detach" a detach; it is removed.
 *
 * Interfaces and the order of their methods: src/coreclr/inc/corprof.idl and cor.h. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int32_t hresult;
typedef uintptr_t id;
typedef struct {
    uint32_t a;
    uint16_t b, c;
    uint8_t d[8];
} guid;

enum { S_OK = 0, E_FAIL = (int)0x80004005, E_NOINTERFACE = (int)0x80004002, CLASS_NOT_AVAILABLE = (int)0x80040111 };

/* COR_PRF_MONITOR_MODULE_LOADS, _JIT_COMPILATION, COR_PRF_ENABLE_STACK_SNAPSHOT. */
enum { EVENTS = 0x4 | 0x20 | 0x10000000 };

static const guid IID_UNKNOWN = {0, 0, 0, {0xc0, 0, 0, 0, 0, 0, 0, 0x46}};
static const guid IID_CLASS_FACTORY = {1, 0, 0, {0xc0, 0, 0, 0, 0, 0, 0, 0x46}};
static const guid CLSID = {0x7f0a3c52, 0x6b1e, 0x4d0b, {0x9e, 0x0a, 0x5d, 0x2e, 0x1c, 0x0b, 0x8a, 0x11}};
static const guid IID_CALLBACK = {0x176fbed1, 0xa55c, 0x4796, {0x98, 0xca, 0xa9, 0xda, 0x0e, 0xf8, 0x83, 0xe7}};
static const guid IID_CALLBACK2 = {0x8a8cc829, 0xccf2, 0x49fe, {0xbb, 0xae, 0x0f, 0x02, 0x22, 0x28, 0x07, 0x1a}};
static const guid IID_CALLBACK3 = {0x4fd2ed52, 0x7731, 0x4b8d, {0x94, 0x69, 0x03, 0xd2, 0xcc, 0x30, 0x86, 0xc5}};
/* ICorProfilerInfo10 (.NET Core 3.0 and newer) derives from all before it. */
static const guid IID_INFO10 = {0x2f1b5152, 0xc869, 0x40c9, {0xaa, 0x5f, 0x3a, 0xbe, 0x02, 0x6b, 0xd7, 0x20}};
/* ICorProfilerInfo12 (.NET 5 and newer) derives from it. */
static const guid IID_INFO12 = {0x27b24ccd, 0x1cb1, 0x47c5, {0x96, 0xee, 0x98, 0x19, 0x0d, 0xc3, 0x09, 0x59}};
static const guid IID_METADATA_IMPORT = {0x7dac8207, 0xd3ae, 0x4c75, {0x9b, 0x67, 0x92, 0x80, 0x1a, 0x49, 0x7d, 0x44}};

/* Calls a method of an interface by its slot. */
#define CALL(object, slot, types, ...) \
    ((hresult(*) types)(*(void ***)(object))[slot])((object), ##__VA_ARGS__)

enum {
    GET_THREAD_INFO = 12,
    SET_EVENT_MASK = 16,
    GET_TOKEN_AND_METADATA = 19,
    DO_STACK_SNAPSHOT = 36,
    REQUEST_DETACH = 58,
    ENUM_THREADS = 71,
    SUSPEND_RUNTIME = 97,
    RESUME_RUNTIME = 98,
    START_EVENT_SESSION = 101,
    /* IMetaDataImport */
    GET_TYPE_DEF_PROPS = 12,
    GET_METHOD_PROPS = 30,
    GET_NESTED_CLASS_PROPS = 62,
    /* ICorProfilerThreadEnum */
    ENUM_NEXT = 7,
};

static void *info;
static char file[4096];
static const char *_Atomic state = "loaded";
static atomic_long jit_started, jit_finished, modules;
static atomic_int running;
static pthread_t worker;

static int same(const guid *a, const guid *b) { return memcmp(a, b, sizeof *a) == 0; }

static void write_counts(void) {
    char text[256], fresh[4200];
    int length = snprintf(text, sizeof text, "state %s\njit-started %ld\njit-finished %ld\nmodules %ld\n", state,
                          jit_started, jit_finished, modules);
    snprintf(fresh, sizeof fresh, "%s.new", file);
    int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return;
    int whole = write(fd, text, (size_t)length) == length;
    close(fd);
    if (whole) rename(fresh, file);
}

/* A stack while the runtime stands still: only ids, for nothing may be allocated then. */
enum { MAX_FRAMES = 2048, MAX_THREADS = 64 };
struct stack {
    id thread;
    int count;
    id functions[MAX_FRAMES];
};
static struct stack stacks[MAX_THREADS];

static hresult add_frame(id function, uintptr_t ip, id frame, uint32_t size, uint8_t *context, void *data) {
    (void)ip, (void)frame, (void)size, (void)context;
    struct stack *stack = data;
    if (stack->count < MAX_FRAMES && function) stack->functions[stack->count++] = function;
    return S_OK;
}

static void put_narrow(FILE *out, const uint16_t *text) {
    for (; *text; text++) fputc(*text < 128 ? *text : '?', out);
}

static void put_type(FILE *out, void *metadata, uint32_t type, int depth) {
    uint16_t name[512] = {0};
    uint32_t length, flags, base, outer;
    if (depth < 8 && CALL(metadata, GET_NESTED_CLASS_PROPS, (void *, uint32_t, uint32_t *), type, &outer) >= 0) {
        put_type(out, metadata, outer, depth + 1);
        fputc('+', out);
    }
    CALL(metadata, GET_TYPE_DEF_PROPS, (void *, uint32_t, uint16_t *, uint32_t, uint32_t *, uint32_t *, uint32_t *), type,
         name, 511, &length, &flags, &base);
    put_narrow(out, name);
}

/* "frame TYPE<tab>METHOD", or an empty name for what has no metadata. */
static void put_function(FILE *out, id function) {
    void *metadata = NULL;
    uint32_t token = 0, type = 0, length, attributes, blob_length, rva, flags;
    const uint8_t *blob;
    uint16_t name[512] = {0};
    fputs("frame ", out);
    if (CALL(info, GET_TOKEN_AND_METADATA, (void *, id, const guid *, void **, uint32_t *), function,
             &IID_METADATA_IMPORT, &metadata, &token) >= 0 && metadata) {
        if (CALL(metadata, GET_METHOD_PROPS, (void *, uint32_t, uint32_t *, uint16_t *, uint32_t, uint32_t *,
                 uint32_t *, const uint8_t **, uint32_t *, uint32_t *, uint32_t *), token, &type, name, 511, &length,
                 &attributes, &blob, &blob_length, &rva, &flags) >= 0) {
            put_type(out, metadata, type, 0);
            fputc('\t', out);
            put_narrow(out, name);
        }
        ((uint32_t(*)(void *))(*(void ***)metadata)[2])(metadata);
    }
    fputc('\n', out);
}

static void snapshot(void) {
    char path[4200], fresh[4200];
    void *threads = NULL;
    int count = 0;
    hresult suspended = E_FAIL;
    for (int i = 0; i < 100 && suspended < 0; i++) {
        suspended = CALL(info, SUSPEND_RUNTIME, (void *));
        if (suspended < 0) usleep(10000); /* a collection is going on */
    }
    if (suspended < 0) return;
    if (CALL(info, ENUM_THREADS, (void *, void **), &threads) >= 0) {
        uint32_t got = 0;
        id thread;
        while (count < MAX_THREADS && CALL(threads, ENUM_NEXT, (void *, uint32_t, id *, uint32_t *), 1, &thread, &got) == S_OK && got) {
            stacks[count].thread = thread;
            stacks[count].count = 0;
            CALL(info, DO_STACK_SNAPSHOT, (void *, id, void *, uint32_t, void *, uint8_t *, uint32_t), thread,
                 (void *)add_frame, 0, &stacks[count], NULL, 0);
            count++;
        }
    }
    CALL(info, RESUME_RUNTIME, (void *));
    snprintf(path, sizeof path, "%s.stacks", file);
    snprintf(fresh, sizeof fresh, "%s.stacks.new", file);
    FILE *out = fopen(fresh, "we");
    if (!out) return;
    for (int i = 0; i < count; i++) {
        uint32_t tid = 0;
        CALL(info, GET_THREAD_INFO, (void *, id, uint32_t *), stacks[i].thread, &tid);
        fprintf(out, "thread %u snapshot\n", tid);
        for (int f = 0; f < stacks[i].count; f++) put_function(out, stacks[i].functions[f]);
    }
    fclose(out);
    rename(fresh, path);
}

/* COR_PRF_EVENTPIPE_PROVIDER_CONFIG */
struct provider {
    const uint16_t *name;
    uint64_t keywords;
    uint32_t level;
    const uint16_t *filter;
};

/* Collections and allocations (also sampled ones), waits for locks; verbose. It asks for no events itself:
 * those are delivered to the profilers that do. */
static hresult open_session(void) {
    static uint16_t name[64];
    static const char narrow[] = "Microsoft-Windows-DotNETRuntime";
    for (size_t i = 0; i < sizeof narrow; i++) name[i] = (uint16_t)narrow[i];
    struct provider provider = {name, 0x1 | 0x4000 | 0x80000000000, 5, NULL};
    void *newer = NULL;
    uint64_t session = 0;
    if (CALL(info, 0, (void *, const guid *, void **), &IID_INFO12, &newer) < 0) return E_FAIL;
    return CALL(newer, START_EVENT_SESSION, (void *, uint32_t, const struct provider *, int, uint64_t *), 1, &provider,
                0, &session);
}

static void *work(void *unused) {
    (void)unused;
    char request[4200];
    snprintf(request, sizeof request, "%s.request", file);
    while (running) {
        char word[16] = {0};
        int fd = open(request, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            ssize_t length = read(fd, word, sizeof word - 1);
            close(fd);
            if (length > 0) unlink(request);
        }
        if (strncmp(word, "snapshot", 8) == 0) snapshot();
        if (strncmp(word, "events", 6) == 0) state = open_session() < 0 ? "events refused" : "listening";
        if (strncmp(word, "detach", 6) == 0) {
            state = "detaching";
            write_counts();
            if (CALL(info, REQUEST_DETACH, (void *, uint32_t), 100) < 0) state = "detach refused";
            /* ProfilerDetachSucceeded has the last word. */
            pthread_detach(pthread_self());
            running = 0;
            return NULL;
        }
        write_counts();
        usleep(100000);
    }
    return NULL;
}

static hresult start(void *unknown, const char *path, const char *how) {
    snprintf(file, sizeof file, "%s", path);
    if (CALL(unknown, 0, (void *, const guid *, void **), &IID_INFO10, &info) < 0) return E_FAIL;
    hresult result = CALL(info, SET_EVENT_MASK, (void *, uint32_t), EVENTS);
    if (result < 0) return result;
    jit_started = jit_finished = modules = 0;
    state = how;
    running = 1;
    return pthread_create(&worker, NULL, work, NULL) == 0 ? S_OK : E_FAIL;
}

/* The callbacks. */

static hresult ignore(void *self) {
    (void)self;
    return S_OK;
}

static uint32_t count_reference(void *self) {
    (void)self;
    return 1;
}

static hresult initialize(void *self, void *unknown) {
    (void)self;
    const char *path = getenv("STRATA_TEST_PROFILER");
    return path ? start(unknown, path, "initialized") : E_FAIL;
}

static hresult initialize_for_attach(void *self, void *unknown, void *data, uint32_t length) {
    (void)self;
    char path[4096] = {0};
    if (length == 0 || length >= sizeof path) return E_FAIL;
    memcpy(path, data, length);
    return start(unknown, path, "attached");
}

static hresult shut_down(void *self) {
    (void)self;
    if (!running) return S_OK;
    running = 0;
    pthread_join(worker, NULL);
    state = "shut down";
    write_counts();
    return S_OK;
}

static hresult detached(void *self) {
    (void)self;
    state = "detached";
    write_counts();
    return S_OK;
}

static hresult count_jit_started(void *self, id function, int safe) {
    (void)self, (void)function, (void)safe;
    jit_started++;
    return S_OK;
}

static hresult count_jit_finished(void *self, id function, hresult status, int safe) {
    (void)self, (void)function, (void)status, (void)safe;
    jit_finished++;
    return S_OK;
}

static hresult count_module(void *self, id module, hresult status) {
    (void)self, (void)module, (void)status;
    modules++;
    return S_OK;
}

static hresult query(void *self, const guid *wanted, void **result);

enum { CALLBACK3_SLOTS = 83 };
static void *callback_table[CALLBACK3_SLOTS];
static void *callback = callback_table;

static void fill_callback_table(void) {
    for (int i = 0; i < CALLBACK3_SLOTS; i++) callback_table[i] = (void *)ignore;
    callback_table[0] = (void *)query;
    callback_table[1] = callback_table[2] = (void *)count_reference;
    callback_table[3] = (void *)initialize;
    callback_table[4] = (void *)shut_down;
    callback_table[14] = (void *)count_module; /* ModuleLoadFinished */
    callback_table[23] = (void *)count_jit_started;
    callback_table[24] = (void *)count_jit_finished;
    callback_table[80] = (void *)initialize_for_attach;
    callback_table[82] = (void *)detached;
}

static hresult query(void *self, const guid *wanted, void **result) {
    int known = same(wanted, &IID_UNKNOWN) || same(wanted, &IID_CALLBACK) || same(wanted, &IID_CALLBACK2) ||
                same(wanted, &IID_CALLBACK3);
    *result = known ? self : NULL;
    return known ? S_OK : E_NOINTERFACE;
}

/* The class factory. */

static hresult query_factory(void *self, const guid *wanted, void **result) {
    int known = same(wanted, &IID_UNKNOWN) || same(wanted, &IID_CLASS_FACTORY);
    *result = known ? self : NULL;
    return known ? S_OK : E_NOINTERFACE;
}

static hresult create(void *self, void *outer, const guid *wanted, void **result) {
    (void)self, (void)outer;
    fill_callback_table();
    return query(&callback, wanted, result);
}

static void *factory_table[] = {(void *)query_factory, (void *)count_reference, (void *)count_reference,
                                (void *)create, (void *)ignore};
static void *factory = factory_table;

__attribute__((visibility("default"))) hresult DllGetClassObject(const guid *class, const guid *wanted, void **result) {
    *result = NULL;
    return same(class, &CLSID) ? query_factory(&factory, wanted, result) : CLASS_NOT_AVAILABLE;
}

__attribute__((visibility("default"))) hresult DllCanUnloadNow(void) { return 1; }

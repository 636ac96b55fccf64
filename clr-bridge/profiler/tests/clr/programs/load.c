/* Stands in for a runtime: loads the library as the CLR does, starts a session with an info object
 * that knows nothing, and lets it end. Prints "good" when everything was as expected.
 *
 * load LIBRARY */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct { uint32_t a; uint16_t b, c; uint8_t d[8]; } guid;
typedef int (*get_class_object)(const guid *, const guid *, void **);
typedef void (*set_application)(const char *, const char *, const char *, const char *);
typedef struct { void *const *table; } object;

static const guid class_id = {0x8a4d1e52, 0x6f0b, 0x4c39, {0x9b, 0x7e, 0xd5, 0xc1, 0xa7, 0xf2, 0x3e, 0x60}};
static const guid other_id = {1, 2, 3, {4}};
static const guid class_factory = {1, 0, 0, {0xc0, 0, 0, 0, 0, 0, 0, 0x46}};
static const guid callback2 = {0x8a8cc829, 0xccf2, 0x49fe, {0xbb, 0xae, 0x0f, 0x02, 0x22, 0x28, 0x07, 0x1a}};
static const guid callback11 = {0x42350846, 0xaaed, 0x47f7, {0xb1, 0x28, 0xfd, 0x0c, 0x98, 0x88, 0x1c, 0xde}};
static const guid callback12 = {0x42350847, 0, 0, {0}};
static const guid info15 = {0xb446462d, 0xbd22, 0x41dd, {0x87, 0x2d, 0xdc, 0x71, 0x4c, 0x49, 0xeb, 0x56}};

static int references;

static int info_query(void *this, const guid *wanted, void **found)
{
    *found = NULL;
    if (memcmp(wanted, &info15, sizeof info15)) return 0x80004002;
    references++;
    *found = this;
    return 0;
}

static uint32_t info_count(void *this) { (void)this; return 1; }
static uint32_t info_release(void *this) { (void)this; references--; return 1; }
static int info_knows_nothing(void *this) { (void)this; return 0x80004005; }
static int info_set_event_mask(void *this, uint32_t low, uint32_t high)
{
    (void)this; (void)low; (void)high;
    return 0;
}

static int count(const char *what)
{
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) found += strstr(line, what) != NULL;
    if (maps) fclose(maps);
    return found;
}

#define CHECK(what) do { if (!(what)) { printf("not so: %s\n", #what); return 1; } } while (0)
#define CALL(this, slot, ...) \
    (((int (*)(void *, ...))((object *)(this))->table[slot])((this), ##__VA_ARGS__))

int main(int count_of_arguments, char **arguments)
{
    CHECK(count_of_arguments == 2);
    void *library = dlopen(arguments[1], RTLD_LAZY | RTLD_LOCAL);
    if (!library) { printf("%s\n", dlerror()); return 1; }
    get_class_object get = (get_class_object)dlsym(library, "DllGetClassObject");
    set_application set = (set_application)dlsym(library, "SetApplicationInfoForAppDomain");
    CHECK(get && set && dlsym(library, "DllCanUnloadNow"));
    void *factory = NULL, *callback = NULL, *newest = NULL;
    CHECK(get(&other_id, &class_factory, &factory) < 0);
    CHECK(get(&class_id, &other_id, &factory) < 0 && !factory);
    CHECK(get(&class_id, &class_factory, &factory) == 0 && factory);
    CHECK(CALL(factory, 3, NULL, &callback2, &callback) == 0 && callback);
    CHECK(CALL(callback, 0, &callback12, &newest) < 0 && !newest);
    CHECK(CALL(callback, 0, &callback11, &newest) == 0 && newest);
    int notification_only = 0;
    CHECK(CALL(newest, 97, &notification_only) == 0 && notification_only == 1);

    void *table[115];
    for (int slot = 0; slot < 115; slot++) table[slot] = info_knows_nothing;
    table[0] = info_query;
    table[1] = info_count;
    table[2] = info_release;
    table[82] = info_set_event_mask;
    object info = {table};

    set("before", "any", NULL, "session");
    for (int session = 0; session < 3; session++) {
        CHECK(CALL(newest, 80, &info, NULL, 0) == 0);
        CHECK(references == 1);
        CHECK(count("/memfd:strata-clr (deleted)") == 1 && count("/memfd:strata-clr-log") == 1);
        CHECK((uint32_t)CALL(newest, 80, &info, NULL, 0) == 0x8013136a);
        CHECK(CALL(newest, 81) == 0);
        int inline_it = 0;
        CHECK(CALL(newest, 28, (size_t)1, (size_t)2, &inline_it) == 0 && inline_it == 1);
        CHECK(CALL(newest, 24, (size_t)1, 0, 1) == 0);
        CHECK(CALL(newest, 72, (size_t)7, 1, L"x") == 0);
        set("12345678-9abc-def0-1234-56789abcdef0", "shop", NULL, "1");
        usleep(30000);
        CHECK(CALL(newest, 82) == 0);
        CHECK(references == 0 && count("strata-clr") == 0);
    }
    CHECK(CALL(newest, 80, NULL, NULL, 0) < 0);
    dlclose(library);
    CHECK(count("libstrata_clr.so") > 0);
    puts("good");
    return 0;
}

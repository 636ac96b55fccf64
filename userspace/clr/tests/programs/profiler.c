// The smallest CLR profiler there can be: it is loaded, and does nothing. It stands for the profilers
// of others in tests. Its class is {6B1F0C2E-5D7A-4E83-8C49-0A1B2C3D4E5F}; it takes any.
//
// Every method of a profiler returns S_OK here, whatever its arguments are (System V ABI: the caller
// passes and forgets them). The order of the tables is that of IUnknown, IClassFactory and
// ICorProfilerCallback11 (corprof.idl).
#include <stddef.h>

enum { SLOTS = 128 };

static int nothing(void) { return 0; }

static int find(void *self, const void *interface, void **found)
{
    (void)interface;
    *found = self;
    return 0;
}

static void *profiler_table[SLOTS];
static void **profiler = profiler_table;

static int create(void *self, void *outer, const void *interface, void **found)
{
    (void)self;
    (void)outer;
    return find(&profiler, interface, found);
}

static void *factory_table[5];
static void **factory = factory_table;

int DllGetClassObject(const void *class, const void *interface, void **found)
{
    (void)class;
    for (size_t slot = 0; slot < SLOTS; slot++)
        profiler_table[slot] = (void *)nothing;
    profiler_table[0] = (void *)find;
    factory_table[0] = (void *)find;
    factory_table[1] = factory_table[2] = factory_table[4] = (void *)nothing;
    factory_table[3] = (void *)create;
    return find(&factory, interface, found);
}

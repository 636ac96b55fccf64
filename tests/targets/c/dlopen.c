/* Loads and unloads a plugin over and over. usage: dlopen plugin.so [seconds] */
#include "burn.h"
#include <dlfcn.h>

NOINLINE static double call_plugin(const char *path, int times) {
    void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
    double (*entry)(double) = (double (*)(double))dlsym(library, "plugin_entry");
    double sum = 0;
    for (int i = 0; i < times; i++) sum += entry(i);
    dlclose(library);
    return sum;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    double end = target_now() + seconds_argument(argc, argv, 2, 60), sum = 0;
    while (target_now() < end) {
        sum += call_plugin(argv[1], 1);
        sum += call_plugin(argv[1], 4000); /* about 0.2 s: long enough for a profiler to see it */
    }
    report_cpu("dlopen");
    return sum == 42;
}

/* Loads every library of a folder and spends its time in all of them, in turn.
 * usage: modules folder [seconds] */
#include "burn.h"
#include <dirent.h>
#include <dlfcn.h>

#define MOST 4096

int main(int argc, char **argv) {
    static double (*entries[MOST])(double);
    char path[4096];
    size_t count = 0;
    if (argc < 2) return 2;
    DIR *folder = opendir(argv[1]);
    for (struct dirent *one; folder && (one = readdir(folder)) && count < MOST;) {
        if (one->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], one->d_name);
        void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
        if (!library) {
            fprintf(stderr, "%s\n", dlerror());
            return 3;
        }
        entries[count++] = (double (*)(double))dlsym(library, "plugin_entry");
    }
    if (!count) return 4;
    printf("loaded %zu\n", count);
    fflush(stdout);
    double end = target_now() + seconds_argument(argc, argv, 2, 60), sum = 0;
    for (size_t next = 0; target_now() < end; next = (next + 1) % count)
        for (int i = 0; i < 20; i++) sum += entries[next](i);
    report_cpu("modules");
    return sum == 42;
}

// Loads a CLR profiler library and asks it for a class that it does not have.
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **arguments)
{
    void *library = dlopen(count > 1 ? arguments[1] : "", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        puts(dlerror());
        return 1;
    }
    int (*get_class)(const void *, const void *, void **) = dlsym(library, "DllGetClassObject");
    if (!get_class)
        return 2;
    const unsigned char nobody[16] = {1};
    void *found = 0;
    printf("%x\n", (unsigned)get_class(nobody, nobody, &found));
    return 0;
}

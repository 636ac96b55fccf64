/* A library that is loaded, called and unloaded while its host runs. Its calls to libm go through
 * lazily bound PLT entries, resolved anew after each load. */
#include "burn.h"
#include <math.h>
#include <string.h>

NOINLINE static double plugin_leaf(double seed) { return seed + (double)(burn_units(10) & 7); }

double plugin_entry(double seed) {
    char text[32];
    double x = plugin_leaf(seed);
    x += sin(x) + cos(x) + tan(x) + exp(fmod(x, 3)) + log(fabs(x) + 1) + cbrt(x) + erf(x) + atan(x);
    snprintf(text, sizeof text, "%.3f", x);
    return x + (double)strlen(text) + (double)strtol(text, 0, 10) * 1e-9;
}

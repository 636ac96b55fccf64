/* Functions so small that the PLT stub before them is a good part of their cost. */
#include <stdint.h>

uint64_t plt_a(uint64_t x) { return x * 3 + 1; }
uint64_t plt_b(uint64_t x) { return plt_a(x) ^ 5; }
uint64_t plt_c(uint64_t x) { return x + 7; }
uint64_t plt_d(uint64_t x) { return plt_c(x) * 9; }

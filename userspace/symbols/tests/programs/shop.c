// Static, inlined, weak and aliased functions, and calls through the PLT.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline __attribute__((always_inline)) int price(int item) {
  int sum = 0;
  for (int i = 0; i < item; i++)
    sum += i ^ item;
  return sum;
}

static inline __attribute__((always_inline)) int line_total(int item, int count) {
  int total = price(item) * count;
  if (total > 100)
    total -= price(count);
  return total;
}

__attribute__((noinline)) int order_total(int items) {
  int total = 0;
  for (int i = 1; i < items; i++)
    total += line_total(i, items - i);
  return total;
}

__attribute__((noinline)) static int by_value(const void *left, const void *right) {
  return *(const int *)left - *(const int *)right;
}

int __order_hidden(int items) __attribute__((alias("order_total")));
__attribute__((weak)) int weak_total(int items) { return order_total(items) + 1; }

// Written in assembly, without sizes: reaches to the next symbol of its section.
__asm__(".text\n.globl sizeless_first\nsizeless_first:\n nop\n nop\n nop\n ret\n"
        ".globl sizeless_second\nsizeless_second:\n nop\n ret\n"
        ".section .text.apart,\"ax\",@progbits\n.globl sizeless_last\nsizeless_last:\n nop\n ret\n"
        // One with more behind it than it can have, and one before a function without a symbol.
        ".section .text.far,\"ax\",@progbits\n.globl sizeless_far\nsizeless_far:\n"
        " .fill 6000, 1, 0x90\n ret\n"
        ".section .text.before,\"ax\",@progbits\n.globl sizeless_before\nsizeless_before:\n"
        " nop\n nop\n nop\n ret\n .cfi_startproc\n nop\n ret\n .cfi_endproc\n"
        ".text\n");

int main(int argc, char **argv) {
  int values[64];
  for (int i = 0; i < 64; i++)
    values[i] = order_total(argc + i) % 97 + weak_total(i);
  qsort(values, 64, sizeof *values, by_value);
  char *text = malloc(64);
  snprintf(text, 64, "%d %zu", values[0], strlen(argv[0]));
  puts(text);
  free(text);
  return 0;
}

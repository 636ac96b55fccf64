/* Burns under a process name given on the command line, in a function whose name a test overwrites
 * in the symbol table. usage: names comm [seconds] */
#include "burn.h"
#include <sys/prctl.h>

NOINLINE uint64_t placeholder_name_of_40_characters_length(void) { return burn_units(20); }

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    prctl(PR_SET_NAME, argv[1]);
    double end = target_now() + seconds_argument(argc, argv, 2, 60);
    uint64_t sum = 0;
    while (target_now() < end) {
        sum += placeholder_name_of_40_characters_length();
        KEEP_FRAME(sum);
    }
    report_cpu("names");
    return sum == 42;
}

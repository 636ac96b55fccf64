/* Renames its thread without end, millions of times a second.
 * usage: rename_storm SECONDS
 *
 * Any user may do so, and each time is an event. */
#include "burn.h"

#include <sys/prctl.h>

int main(int argc, char **argv) {
    double end = target_now() + seconds_argument(argc, argv, 1, 5);
    printf("ready\n");
    fflush(stdout);
    while (target_now() < end) {
        for (int i = 0; i < 1024; i++) prctl(PR_SET_NAME, i % 2 == 0 ? "one" : "another");
    }
    report_cpu("rename_storm");
    return 0;
}

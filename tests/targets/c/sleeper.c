/* Sleeps, and does nothing else. usage: sleeper [seconds] */
#include "burn.h"

int main(int argc, char **argv) {
    double end = target_now() + seconds_argument(argc, argv, 1, 60);
    while (target_now() < end) usleep(500000);
    report_cpu("sleeper");
    return 0;
}

/* Sleeps, and does nothing else. usage: sleeper [seconds] */
#include "burn.h"

int main(int argc, char **argv) {
    double end = wall_now() + seconds_argument(argc, argv, 1, 60);
    while (wall_now() < end) usleep(500000);
    report_cpu("sleeper");
    return 0;
}

/* Many processes that map libraries and then sleep. usage: idle_many count seconds */
#include "burn.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    int count = atoi(argv[1]);
    unsigned seconds = (unsigned)atoi(argv[2]);
    pid_t self = getpid();
    for (int i = 0; i < count; i++) {
        pid_t pid = fork();
        if (pid < 0) break;
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != self) _exit(0);
            sleep(seconds);
            _exit(0);
        }
    }
    puts("ready");
    fflush(stdout);
    sleep(seconds);
    return 0;
}

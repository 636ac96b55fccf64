/* on_off SOCKET: a server on a Unix socket with a thread for each connection. "GET /burns" is answered after
 * 100 ms of work, "GET /waits" after a wait of 100 ms. */
#include "burn.h"
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#define KEPT __attribute__((noinline, noclone))

KEPT static int burns(void) {
    double until = target_now() + 0.1;
    volatile double sum = 0;
    while (target_now() < until)
        for (int i = 1; i < 1000; i++) sum += 1.0 / i;
    return sum > 0;
}

KEPT static int waits(void) {
    struct timespec time = {0, 100000000};
    int failed = nanosleep(&time, NULL);
    __asm__ volatile("" : "+r"(failed)); /* no tail call: it would have no frame while it waits */
    return !failed;
}

static void *serve(void *given) {
    static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    int connection = (int)(long)given;
    char request[256];
    ssize_t length;
    while ((length = read(connection, request, sizeof request - 1)) > 0) {
        request[length] = 0;
        int done = strncmp(request, "GET /burns", 10) == 0 ? burns() : waits();
        if (!done || write(connection, answer, sizeof answer - 1) < 0) break;
    }
    close(connection);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, argv[1], sizeof address.sun_path - 1);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 16)) return 1;
    puts("ready");
    fflush(stdout);
    for (;;) {
        int connection = accept(listener, NULL, NULL);
        pthread_t thread;
        if (connection < 0 || pthread_create(&thread, NULL, serve, (void *)(long)connection)) return 1;
    }
}

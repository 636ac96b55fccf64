"""A server that forks its workers: what they run was run before the fork, so that it has trampolines
from then. Named functions come from the parent's perf map."""

import os
import sys
import time


def leaf(count):
    total = 0
    for number in range(count):
        total += number * number
    return total


def handle(count):
    return leaf(count)


def serve(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        handle(2000)


serve(0.1)
seconds = float(sys.argv[1])
for worker in range(2):
    if os.fork() == 0:
        serve(seconds)
        os._exit(0)
print("ready", flush=True)
for worker in range(2):
    os.wait()

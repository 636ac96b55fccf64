"""The 50/30/20 shares in Python. usage: shares.py [seconds]"""

import functools
import sys
import time


def burn_fifty(units):
    return sum(i * i for i in range(units))


def burn_thirty(units):
    return sum(i * i for i in range(units))


def burn_twenty(units):
    return sum(i * i for i in range(units))


# Drawn from: a fixed order of turns may be in step with a sampler.
SEED = [42]
ORDER = [burn_fifty] * 5 + [burn_thirty] * 3 + [burn_twenty] * 2


def compare_and_burn(left, right):
    SEED[0] = (SEED[0] * 6364136223846793005 + 1442695040888963407) % 2**64
    ORDER[(SEED[0] >> 33) % 10](500)
    return left - right


def descend(depth):
    if depth == 0:
        return sorted(((i * 37) % 64 for i in range(64)), key=functools.cmp_to_key(compare_and_burn))
    return descend(depth - 1)


def main():
    end = time.monotonic() + (float(sys.argv[1]) if len(sys.argv) > 1 else 60)
    while time.monotonic() < end:
        descend(7)
    print(f"cpu name=python pid=0 seconds={time.process_time():.6f}")


main()

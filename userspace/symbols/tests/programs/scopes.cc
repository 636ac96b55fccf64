// Functions that g++ gives no linkage name, all inlined at -O2.
#include <algorithm>
#include <cstdio>
#include <vector>

#define STEPS(x, factor)                                                                           \
  for (int i = 0; i < 100; i++)                                                                    \
    x = x * factor + i * x;

struct Plain {
  struct Step {
    long operator()(long x) const {
      STEPS(x, 31)
      return x;
    }
  };
};

namespace shop {
namespace {
struct Box {
  long value;
  long get(long x) const {
    STEPS(x, 37)
    return x + value;
  }
};
} // namespace

static long fold(long x) {
  STEPS(x, 41)
  return x;
}

template <class Function> inline long apply(Function function, long x) {
  for (int i = 0; i < 10; i++)
    x = function(x);
  return x;
}

struct Runner {
  __attribute__((noinline)) long go(long x);
};

long Runner::go(long x) {
  struct Local {
    long step(long y) {
      STEPS(y, 43)
      return y;
    }
  };
  return apply(
      [](long y) {
        STEPS(y, 47)
        return y;
      },
      Local{}.step(x));
}
} // namespace shop

int main(int argc, char **) {
  auto first = [](long x) {
    STEPS(x, 53)
    return x;
  };
  auto second = [](long x) {
    STEPS(x, 59)
    return x;
  };
  struct {
    long twist(long x) {
      STEPS(x, 61)
      return x;
    }
  } unnamed;
  std::vector<long> lines(100, argc);
  std::sort(lines.begin(), lines.end(), [](long a, long b) { return a % 7 < b % 7; });
  long sum = first(argc) + second(argc) + unnamed.twist(argc) + Plain::Step{}(argc);
  sum += shop::Box{argc}.get(argc) + shop::fold(argc) + shop::Runner{}.go(argc);
  std::printf("%ld %ld\n", sum, lines[0]);
}

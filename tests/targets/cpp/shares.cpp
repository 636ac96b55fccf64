// The 50/30/20 shares below virtual calls, templates, std::sort and exceptions.
// usage: shares_cpp [seconds]
#include "../c/burn.h"

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

namespace work {

struct Fifty {};
struct Thirty {};
struct Twenty {};

template <typename Share>
struct Leaf {
    NOINLINE static uint64_t burn(uint64_t units) { return burn_units(units) ^ sizeof(Share); }
};

struct Burner {
    virtual ~Burner() = default;
    virtual uint64_t run(uint64_t units) = 0;
};

template <typename Share>
struct ShareBurner final : Burner {
    NOINLINE uint64_t run(uint64_t units) override {
        uint64_t below = Leaf<Share>::burn(units);
        KEEP_FRAME(below);
        return below;
    }
};

static std::vector<std::unique_ptr<Burner>> burners;
static uint64_t sink;

NOINLINE static bool compare_and_burn(int left, int right) {
    sink += burners[next_turn()]->run(2);
    return left < right;
}

NOINLINE static uint64_t descend(int depth) {
    if (depth == 0) {
        std::vector<int> numbers(64);
        for (int i = 0; i < 64; i++) numbers[i] = (i * 37) % 64;
        std::sort(numbers.begin(), numbers.end(), compare_and_burn);
        throw std::runtime_error("the bottom");
    }
    uint64_t below = descend(depth - 1);
    KEEP_FRAME(below);
    return below + 1;
}

NOINLINE static uint64_t catch_from_below() {
    try {
        return descend(7);
    } catch (const std::runtime_error &error) {
        return error.what()[0];
    }
}

}  // namespace work

int main(int argc, char **argv) {
    work::burners.push_back(std::make_unique<work::ShareBurner<work::Fifty>>());
    work::burners.push_back(std::make_unique<work::ShareBurner<work::Thirty>>());
    work::burners.push_back(std::make_unique<work::ShareBurner<work::Twenty>>());
    double end = target_now() + seconds_argument(argc, argv, 1, 60);
    while (target_now() < end) work::sink += work::catch_from_below();
    report_cpu("shares_cpp");
    return work::sink == 42;
}

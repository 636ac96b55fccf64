// Namespaces, templates, virtual calls, lambdas, exceptions and an anonymous namespace.
#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

namespace shop {
template <typename Money> struct Order {
  std::vector<Money> lines;
  __attribute__((noinline)) Money total(int times) const {
    Money sum = 0;
    for (int i = 0; i < times; i++)
      for (const Money &line : lines)
        sum += line * i;
    return sum;
  }
};

struct Shape {
  virtual ~Shape() = default;
  virtual int area(int side) const = 0;
};

namespace {
struct Square : Shape {
  __attribute__((noinline)) int area(int side) const override {
    if (side < 0)
      throw std::runtime_error("negative");
    return side * side;
  }
};
} // namespace
} // namespace shop

int main(int argc, char **) {
  shop::Order<long> order;
  for (int i = 0; i < 100; i++)
    order.lines.push_back(i * argc);
  std::sort(order.lines.begin(), order.lines.end(), [](long a, long b) { return a % 7 < b % 7; });
  shop::Square square;
  const shop::Shape &shape = square;
  int area = 0;
  try {
    area = shape.area(argc - 2);
  } catch (const std::exception &error) {
    std::puts(error.what());
  }
  std::printf("%ld %d\n", order.total(argc), area);
}

// C++: exceptions through frames with destructors, virtual calls, templates.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

static volatile long sink;

struct Guard {
    long value;
    explicit Guard(long value) : value(value) {}
    ~Guard() { sink += value; }
};

struct Shape {
    virtual ~Shape() = default;
    virtual long area() const = 0;
};

struct Square : Shape {
    long side;
    explicit Square(long side) : side(side) {}
    __attribute__((noinline)) long area() const override { return side * side + sink; }
};

__attribute__((noinline)) void thrower(int depth) {
    Guard guard(depth);
    if (depth == 0)
        throw std::runtime_error("from below");
    thrower(depth - 1);
    sink++;
}

int main() {
    std::vector<std::unique_ptr<Shape>> shapes;
    for (int i = 0; i < 5; i++)
        shapes.push_back(std::make_unique<Square>(i));
    std::sort(shapes.begin(), shapes.end(),
              [](const auto &a, const auto &b) { return a->area() > b->area(); });
    std::map<std::string, long> names;
    for (const auto &shape : shapes)
        names[std::to_string(shape->area())] += shape->area();
    std::function<long(long)> recurse = [&](long n) { return n == 0 ? 0 : n + recurse(n - 1); };
    sink += recurse(6);
    for (int i = 0; i < 2; i++) {
        try {
            thrower(3);
        } catch (const std::exception &error) {
            sink += error.what()[0];
        }
    }
    return 0;
}

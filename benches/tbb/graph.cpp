// The graphs of benches/src/work/graph.rs as flow graphs of oneTBB: a continue_node for each node, made and run under the clock.
//
//   graph SHAPE A B C MICROS WORKERS STEPS-PER-MS REPEATS
//
// Prints a line "op<TAB>NANOSECONDS" for each repeat, as the children of `claims` do, and "value<TAB>NODES THAT HAVE RUN".
// Built by benches/compare, if there is a compiler and the library (Debian: libtbb-dev).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <time.h>
#include <tbb/flow_graph.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>
#include <vector>

using std::uint32_t;
using std::uint64_t;

static uint64_t scattered(uint64_t n) { return (n * 0x9e3779b97f4a7c15ull) >> 8; }

static volatile uint64_t sink = 88172645463325252ull;

static void spin(uint64_t steps) {
    uint64_t x = sink;
    for (uint64_t i = 0; i < steps; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    sink = x;
}

struct Shape {
    std::string word;
    uint32_t a, b, c;

    uint32_t nodes() const {
        if (word == "one-input") return 1 + a;
        return word == "layered" ? a * b : a * a;
    }

    std::vector<uint32_t> before(uint32_t i) const {
        std::vector<uint32_t> all;
        if (word == "one-input") {
            if (i > 0) all.push_back(0);
        } else if (word == "layered") {
            if (i < b) return all;
            for (uint32_t edge = 0; edge < c; edge++) all.push_back((i / b - 1) * b + scattered(uint64_t(i * c + edge)) % b);
            std::sort(all.begin(), all.end());
            all.erase(std::unique(all.begin(), all.end()), all.end());
        } else {
            if (i >= a) all.push_back(i - a);
            if (i % a > 0) all.push_back(i - 1);
        }
        return all;
    }
};

static double cpu() {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

int main(int count, char **words) {
    if (count != 9) {
        std::fprintf(stderr, "graph SHAPE A B C MICROS WORKERS STEPS-PER-MS REPEATS\n");
        return 2;
    }
    auto number = [&](int at) { return std::strtoull(words[at], nullptr, 10); };
    const Shape shape{words[1], uint32_t(number(2)), uint32_t(number(3)), uint32_t(number(4))};
    const uint64_t micros = number(5), steps = number(7) * micros / 1000;
    const int workers = int(number(6)), repeats = int(number(8));
    const uint32_t nodes = shape.nodes();
    std::vector<std::vector<uint32_t>> before;
    for (uint32_t i = 0; i < nodes; i++) before.push_back(shape.before(i));
    tbb::global_control limit(tbb::global_control::max_allowed_parallelism, workers);
    tbb::task_arena arena(workers);
    std::vector<std::atomic<unsigned char>> marks(nodes);
    double used = 0;
    for (int repeat = -1; repeat < repeats; repeat++) {
        for (auto &mark : marks) mark.store(0);
        const double cpu_before = cpu();
        const auto start = std::chrono::steady_clock::now();
        arena.execute([&] {
            using Node = tbb::flow::continue_node<tbb::flow::continue_msg>;
            tbb::flow::graph graph;
            std::deque<Node> all;
            for (uint32_t i = 0; i < nodes; i++) {
                all.emplace_back(graph, [&, i](const tbb::flow::continue_msg &) {
                    for (uint32_t of : before[i])
                        if (!marks[of].load(std::memory_order_acquire)) std::abort();
                    if (micros) spin(steps);
                    marks[i].store(1, std::memory_order_release);
                });
                for (uint32_t of : before[i]) tbb::flow::make_edge(all[of], all[i]);
            }
            for (uint32_t i = 0; i < nodes; i++)
                if (before[i].empty()) all[i].try_put(tbb::flow::continue_msg());
            graph.wait_for_all();
        });
        const double nanos = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
        uint64_t value = 0;
        for (auto &mark : marks) value += mark.load();
        if (value != nodes) std::abort();
        // The first is for warming up.
        if (repeat < 0) continue;
        used += cpu() - cpu_before;
        std::printf("op\t%f\n", nanos / nodes);
    }
    std::printf("figure\tcpu ns\t%f\n", used / repeats / nodes);
}

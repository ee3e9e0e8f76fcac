// Threads that share the outputs of a kernel, never a sum.
#pragma once
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>

namespace nartk {

// The processor's rounding as the kernels need it, for as long as this lives.
class Rounding {
  public:
    Rounding();
    ~Rounding();

  private:
    unsigned before;
};

class Threads {
  public:
    explicit Threads(int count) : most(count), now(count) {}
    ~Threads();
    // Into how many parts to share `units` of work that together are worth so many threads' starting.
    int parts(int units, double worth) const;
    // Called where a pass begins: no more threads than the process may have cores by now.
    void adapt();
    // Calls body(part, first, last) for each of so many parts of `units`. Another caller's work meanwhile runs on
    // that caller's thread.
    template <class Body>
    void share(int units, int parts, Body body) {
        if (parts == 1) return body(0, 0, units);
        const int each = (units + parts - 1) / parts;
        run(parts, [&](int part) {
            const int first = part * each, last = std::min(units, first + each);
            if (first < last) body(part, first, last);
        });
    }
    // Cores that this process may use: its affinity mask and its cgroup's quota.
    static int available();

  private:
    struct Pool;
    bool take();
    void run(int parts, const std::function<void(int)>& part);
    const int most;
    std::atomic<int> now;             // at most `most`
    std::atomic<int> quota{1 << 30};  // cores, as they were lately
    std::atomic<long long> asked{0};  // when, in ms
    std::shared_ptr<Pool> pool;       // started with the first work; a forked child starts its own
    std::atomic<long> holder{0};  // the process that uses the pool; of a parent's, no thread is left to give it back
};

}  // namespace nartk

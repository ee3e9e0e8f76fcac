// Threads that share the outputs of a kernel, never a sum.
#pragma once
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
    explicit Threads(int count) : most(count) {}
    ~Threads();
    int count() const { return most; }
    // Calls part(i) for i below `parts`, on as many threads. Another caller's work meanwhile runs on its own.
    void run(int parts, const std::function<void(int)>& part);
    // Cores that this process may use: its affinity mask and its cgroup's quota.
    static int available();

  private:
    struct Pool;
    bool take();
    int most;
    std::shared_ptr<Pool> pool;   // started with the first work; a forked child starts its own
    std::atomic<long> holder{0};  // the process that uses the pool; of a parent's, no thread is left to give it back
};

}  // namespace nartk

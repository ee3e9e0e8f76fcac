// Threads that share the outputs of a kernel, never a sum.
#pragma once
#include <functional>
#include <memory>
#include <mutex>

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
    explicit Threads(int count);
    ~Threads();
    int count() const { return most; }
    // Calls part(i) for i below `parts`, on as many threads. Another caller's work meanwhile runs on its own.
    void run(int parts, const std::function<void(int)>& part);
    // Cores that this process may use: its affinity mask and its cgroup's quota.
    static int available();

  private:
    struct Pool;
    int most;
    std::shared_ptr<Pool> pool;  // started with the first work; a forked child starts its own
    std::unique_ptr<std::mutex> busy;
};

}  // namespace nartk

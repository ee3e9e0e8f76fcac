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
    // Into how many parts to share `units` of work that together are worth so many threads' starting.
    int parts(int units, double worth) const;
    // Calls part(i) for i below `parts`. Another caller's work meanwhile runs on that caller's thread.
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

#include "threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "portable.h"
#if defined(__linux__)
#include <sched.h>
#endif
#if !defined(_WIN32)
#include <unistd.h>
#endif

namespace nartk {

#ifdef NARTK_X86
Rounding::Rounding() : before(_mm_getcsr()) { _mm_setcsr(0x1f80); }  // to nearest, exceptions masked, no flushing
Rounding::~Rounding() { _mm_setcsr(before); }
#else
Rounding::Rounding() : before(0) {}
Rounding::~Rounding() {}
#endif

namespace {

constexpr auto SPIN = std::chrono::microseconds(20);  // before a thread sleeps: a pass's next product comes sooner

long process() {
#if defined(_WIN32)
    return 1;
#else
    return (long)getpid();
#endif
}

// Cores that the calling thread may run on.
int cores_by_mask() {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
    return (int)std::max(1u, std::thread::hardware_concurrency());
}

// Cores whose time the process's cgroup gives it.
int cores_by_quota() {
    int cores = 1 << 30;
#if defined(__linux__)
    if (FILE* file = std::fopen("/sys/fs/cgroup/cpu.max", "r")) {
        long quota = 0, period = 0;
        if (std::fscanf(file, "%ld %ld", &quota, &period) == 2 && period > 0)
            cores = (int)std::max(1L, (quota + period - 1) / period);
        std::fclose(file);
    }
#endif
    return cores;
}

template <class Done>
bool spin(Done done) {
    const auto end = std::chrono::steady_clock::now() + SPIN;
    do {
        for (int i = 0; i < 64; i++) {
            if (done()) return true;
#ifdef NARTK_X86
            _mm_pause();
#endif
        }
    } while (std::chrono::steady_clock::now() < end);
    return false;
}

}  // namespace

// Parts are claimed, by the caller as well: a thread that comes late, as on a busy machine, finds none left and
// nobody waits for it.
struct Threads::Pool {
    std::vector<std::thread> workers;
    std::mutex mutex;
    std::condition_variable wake, finished;
    // The round in the upper half, the next part in the lower one: who claims a part knows its round goes on.
    std::atomic<uint64_t> claims{0};
    std::atomic<int> parts{0}, done{0}, asleep{0};
    std::atomic<bool> stop{false};
    const std::function<void(int)>* part = nullptr;
    std::exception_ptr error;
    const long owner = process();

    explicit Pool(int count) {
        try {
            for (int i = 1; i < count; i++) workers.emplace_back([this] { work(); });
        } catch (const std::system_error&) {  // the system gives no more: those that there are do the work
        }
    }

    ~Pool() {
        {
            std::lock_guard<std::mutex> lock(mutex);
            stop = true;
        }
        wake.notify_all();
        for (auto& each : workers) each.join();
    }

    bool is_work() const { return (int)(uint32_t)claims.load() < parts.load(); }

    // Claims parts and runs them until none is left.
    void take() {
        uint64_t seen = claims.load();
        while ((int)(uint32_t)seen < parts.load()) {
            if (!claims.compare_exchange_weak(seen, seen + 1)) continue;
            try {
                (*part)((int)(uint32_t)seen);
            } catch (...) {
                std::lock_guard<std::mutex> lock(mutex);
                error = std::current_exception();
            }
            if (done.fetch_add(1) + 1 == parts.load()) {
                std::lock_guard<std::mutex> lock(mutex);
                finished.notify_one();
            }
            seen = claims.load();
        }
    }

    void work() {
        const Rounding rounding;
        while (!stop) {
            if (!spin([this] { return is_work() || stop; })) {
                std::unique_lock<std::mutex> lock(mutex);
                asleep++;
                wake.wait(lock, [this] { return is_work() || stop; });
                asleep--;
            }
            take();
        }
    }

    void run(int count, const std::function<void(int)>& body) {
        {
            std::lock_guard<std::mutex> lock(mutex);
            error = nullptr;
            part = &body;
            done = 0;
            // No part of the last round is left to claim; of this one there is none before `claims` is set.
            const uint64_t round = (claims.load() >> 32) + 1;
            claims = round << 32 | 0xffffffffu >> 1;
            parts = count;
            claims = round << 32;
        }
        if (asleep.load() > 0) wake.notify_all();
        take();
        if (!spin([&] { return done.load() == count; })) {
            std::unique_lock<std::mutex> lock(mutex);
            finished.wait(lock, [&] { return done.load() == count; });
        }
        std::lock_guard<std::mutex> lock(mutex);
        if (error) std::rethrow_exception(error);
    }
};

Threads::~Threads() {
    // In a forked child the parent's threads do not exist, and cannot be joined.
    if (pool && pool->owner != process()) new std::shared_ptr<Pool>(std::move(pool));
}

bool Threads::take() {
    const long here = process();
    long held = 0;
    return holder.compare_exchange_strong(held, here) || (held != here && holder.compare_exchange_strong(held, here));
}

void Threads::run(int parts, const std::function<void(int)>& part) {
    if (parts < 2 || !take()) {
        for (int i = 0; i < parts; i++) part(i);
        return;
    }
    struct Give {
        std::atomic<long>& holder;
        ~Give() { holder = 0; }
    } give{holder};
    if (pool && pool->owner != process()) new std::shared_ptr<Pool>(std::move(pool));  // never destroyed: see above
    if (!pool) pool = std::make_shared<Pool>(most);
    pool->run(parts, part);
}

void Threads::adapt() {
    using namespace std::chrono;
    const long long time = duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count();
    if (time - asked > 1000) {
        asked = time;
        quota = cores_by_quota();
    }
    now = std::min({most, cores_by_mask(), quota.load()});
}

int Threads::parts(int units, double worth) const {
    const int count = now;
    if (count < 2 || worth < 2.0) return 1;
    return std::min({units, 4 * count, (int)std::min(worth, 1e6)});
}

int Threads::available() { return std::min(cores_by_mask(), cores_by_quota()); }

}  // namespace nartk

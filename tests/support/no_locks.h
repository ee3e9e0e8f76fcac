// Forced into a test build of the engine, so that NARTK_TEST_LOCKS in the environment can take away what keeps its
// threads apart: with "none" a guard that would have to wait ends the process, since without locks two threads would
// be at the same data; "no fork" leaves out what a fork does first. Guards wait a little while they hold, so that
// others come meanwhile.
#pragma once
#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>

namespace std {
inline bool test_locks_are(const char* kind) {
    const char* named = getenv("NARTK_TEST_LOCKS");
    return named && !strcmp(named, kind);
}

template <class Mutex>
struct test_guard {
    explicit test_guard(Mutex& mutex) : mutex(mutex) {
        if (!mutex.try_lock()) {
            if (test_locks_are("none")) abort();
            mutex.lock();
        }
        usleep(5000);  // microseconds
    }
    ~test_guard() { mutex.unlock(); }
    Mutex& mutex;
};
}  // namespace std

#define lock_guard test_guard
#define pthread_atfork(...) (std::test_locks_are("no fork") ? 0 : pthread_atfork(__VA_ARGS__))

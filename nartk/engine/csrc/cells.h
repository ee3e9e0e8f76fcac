// Which keys and values each hypothesis sees: contexts are lists of cells, which forks share.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace nartk {

// A rule of a pass is broken: a fault of the decoder that asked for it.
struct PassFault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Keys and values of one token, of all layers: `HEAD` floats, then those of layer after layer.
struct Cell {
    static constexpr int HEAD = 16;  // floats before the data, so that it begins at a multiple of 64 bytes
    int holders;
    float* data() { return reinterpret_cast<float*>(this) + HEAD; }
};

// What a pass appended to contexts, until it is known which of it is kept.
struct Pending {
    std::vector<int> contexts, parents;
    std::vector<Cell*> cells;  // null: kept, or gone with its context
    bool open = true;
    bool computing = true;  // its cells are still written
};

struct Context {
    std::vector<Cell*> cells;
    Pending* waits = nullptr;  // for the end of that pass
};

class Cells {
  public:
    explicit Cells(size_t floats) : floats(floats) {}
    ~Cells();
    std::vector<int> open(int count);
    std::vector<int> fork(const int* contexts, int count);
    void truncate(const int* contexts, const int* lengths, int count);
    // A context may wait for the end of a pass, whose tokens of it can then not be kept.
    void close(const int* contexts, int count);
    // Cells for the tokens of a pass, whose contexts wait from then on.
    std::shared_ptr<Pending> begin(const int* contexts, const int* parents, int count);
    void computed(Pending& pending);
    void end(Pending& pending, const int* kept, int count);
    size_t in_use();
    std::vector<int> lengths(const int* contexts, int count);  // of contexts that wait for no pass, named once
    Context& of(int context);  // under the lock
    std::mutex mutex;

  private:
    Cell* take();
    void drop(Cell* cell);
    Context& idle(int context);
    void distinct(const int* which, int count);
    const size_t floats;
    std::vector<void*> slabs;
    std::vector<Cell*> unused;
    std::unordered_map<int, Context> contexts;
    int next = 0;
    size_t used = 0;
};

void* aligned(size_t bytes);  // at a multiple of 64 bytes; throws std::bad_alloc
void release(void* memory);
inline std::string number(long long x) { return std::to_string(x); }
inline int rounded(int x, int multiple) { return (x + multiple - 1) / multiple * multiple; }

}  // namespace nartk

#include "cells.h"

#include <cstdlib>
#include <new>
#include <unordered_set>

namespace nartk {

void* aligned(size_t bytes) {
    return ::operator new(bytes + 64, std::align_val_t(64));  // and what a vector may read past the end
}

void release(void* memory) { ::operator delete(memory, std::align_val_t(64)); }

static constexpr int SLAB = 32;  // cells that are taken from the system at once

Cells::~Cells() {
    for (void* slab : slabs) release(slab);
}

Cell* Cells::take() {
    if (unused.empty()) {
        const size_t size = rounded(Cell::HEAD + (int)floats, 16) * sizeof(float);
        slabs.reserve(slabs.size() + 1);
        unused.reserve((slabs.size() + 1) * SLAB);  // so that no cell that is given back needs memory
        char* slab = static_cast<char*>(aligned(size * SLAB));
        slabs.push_back(slab);
        for (int i = SLAB - 1; i >= 0; i--) unused.push_back(reinterpret_cast<Cell*>(slab + (size_t)i * size));
    }
    Cell* cell = unused.back();
    unused.pop_back();
    cell->holders = 1;
    used++;
    return cell;
}

void Cells::drop(Cell* cell) {
    if (--cell->holders == 0) {
        unused.push_back(cell);
        used--;
    }
}

Context& Cells::of(int context) {
    const auto found = contexts.find(context);
    if (found == contexts.end()) throw PassFault("context " + number(context) + " is not open");
    return found->second;
}

Context& Cells::idle(int context) {
    Context& found = of(context);
    if (found.waits) throw PassFault("context " + number(context) + " waits for the end of a pass");
    return found;
}

void Cells::distinct(const int* which, int count) {
    std::unordered_set<int> seen;
    for (int i = 0; i < count; i++) {
        of(which[i]);
        if (!seen.insert(which[i]).second) throw PassFault("context " + number(which[i]) + " is named twice");
    }
}

std::vector<int> Cells::open(int count) {
    if (count < 0) throw PassFault(number(count) + " contexts are asked for");
    std::lock_guard<std::mutex> lock(mutex);
    std::vector<int> made;
    for (int i = 0; i < count; i++) {
        contexts[next];
        made.push_back(next++);
    }
    return made;
}

std::vector<int> Cells::fork(const int* from, int count) {
    std::lock_guard<std::mutex> lock(mutex);
    for (int i = 0; i < count; i++) idle(from[i]);
    std::vector<int> made;
    for (int i = 0; i < count; i++) {
        Context& to = contexts[next];  // before `idle`: it may move the others
        to.cells = idle(from[i]).cells;
        for (Cell* cell : to.cells) cell->holders++;
        made.push_back(next++);
    }
    return made;
}

std::vector<int> Cells::lengths(const int* which, int count) {
    std::lock_guard<std::mutex> lock(mutex);
    distinct(which, count);
    std::vector<int> found;
    for (int i = 0; i < count; i++) found.push_back((int)idle(which[i]).cells.size());
    return found;
}

void Cells::truncate(const int* which, const int* lengths, int count) {
    std::lock_guard<std::mutex> lock(mutex);
    distinct(which, count);
    for (int i = 0; i < count; i++) {
        const size_t held = idle(which[i]).cells.size();
        if (lengths[i] < 0 || (size_t)lengths[i] > held)
            throw PassFault("context " + number(which[i]) + " has " + number((long long)held) + " cells, not " +
                            number(lengths[i]));
    }
    for (int i = 0; i < count; i++) {
        auto& cells = of(which[i]).cells;
        for (size_t at = lengths[i]; at < cells.size(); at++) drop(cells[at]);
        cells.resize(lengths[i]);
    }
}

void Cells::close(const int* which, int count) {
    std::lock_guard<std::mutex> lock(mutex);
    distinct(which, count);
    for (int i = 0; i < count; i++) {
        const Pending* pending = of(which[i]).waits;
        if (pending && pending->computing) throw PassFault("context " + number(which[i]) + " is used by a pass");
    }
    for (int i = 0; i < count; i++) {
        Context& closed = of(which[i]);
        for (Cell* cell : closed.cells) drop(cell);
        for (size_t at = 0; closed.waits && at < closed.waits->cells.size(); at++) {
            if (closed.waits->contexts[at] != which[i]) continue;
            drop(closed.waits->cells[at]);
            closed.waits->cells[at] = nullptr;
        }
        contexts.erase(which[i]);
    }
}

std::shared_ptr<Pending> Cells::begin(const int* which, const int* parents, int count) {
    for (int i = 0; i < count; i++) {
        idle(which[i]);
        if (parents[i] < -1 || parents[i] >= i)
            throw PassFault("token " + number(i) + " has parent " + number(parents[i]) + ", which is no earlier token");
        if (parents[i] >= 0 && which[parents[i]] != which[i])
            throw PassFault("token " + number(i) + " has a parent of another context");
    }
    auto pending = std::make_shared<Pending>();
    pending->contexts.assign(which, which + count);
    pending->parents.assign(parents, parents + count);
    pending->cells.reserve(count);
    try {
        for (int i = 0; i < count; i++) pending->cells.push_back(take());
    } catch (...) {
        for (Cell* cell : pending->cells) drop(cell);
        throw;
    }
    for (int i = 0; i < count; i++) of(which[i]).waits = pending.get();
    return pending;
}

void Cells::computed(Pending& pending) {
    std::lock_guard<std::mutex> lock(mutex);
    pending.computing = false;
}

size_t Cells::in_use() {
    std::lock_guard<std::mutex> lock(mutex);
    return used;
}

void Cells::end(Pending& pending, const int* kept, int count) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!pending.open) throw PassFault("the pass has ended before");
    const int size = (int)pending.cells.size();
    std::unordered_map<int, int> last;  // of each context, the token that was kept last
    for (int i = 0; i < count; i++) {
        const int at = kept[i];
        if (at < 0 || at >= size) throw PassFault("token " + number(at) + " is kept of a pass of " + number(size));
        of(pending.contexts[at]);  // throws if it is closed
        const auto found = last.find(pending.contexts[at]);
        if (pending.parents[at] != (found == last.end() ? -1 : found->second))
            throw PassFault("the kept tokens form no path: token " + number(at) + " does not follow the one before");
        last[pending.contexts[at]] = at;
    }
    for (int i = 0; i < count; i++) {
        Cell*& cell = pending.cells[kept[i]];
        of(pending.contexts[kept[i]]).cells.push_back(cell);
        cell = nullptr;
    }
    for (Cell* cell : pending.cells)
        if (cell) drop(cell);
    for (int context : pending.contexts) {
        const auto found = contexts.find(context);
        if (found != contexts.end()) found->second.waits = nullptr;
    }
    pending.open = false;
}

}  // namespace nartk

#include "engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <unordered_set>

namespace nartk {

float* Buffer::get(size_t count) {
    if (count > size) {
        release(data);
        data = nullptr;
        size = 0;
        data = static_cast<float*>(aligned(count * sizeof(float)));
        std::memset(data, 0, count * sizeof(float));
        size = count;
    }
    return data;
}

size_t Network::cell_floats(const Stack& stack) {
    size_t floats = 0;
    for (const Layer& layer : stack.layers) floats += layer.cell_floats();
    return floats;
}

Engine::Lease::Lease(Engine& engine) : engine(engine) {
    std::lock_guard<std::mutex> lock(engine.mutex);
    if (engine.spaces.empty()) {
        space.reset(new Workspace);
    } else {
        space = std::move(engine.spaces.back());
        engine.spaces.pop_back();
    }
}

Engine::Lease::~Lease() {
    std::lock_guard<std::mutex> lock(engine.mutex);
    try {
        engine.spaces.push_back(std::move(space));
    } catch (const std::bad_alloc&) {  // then it is gone
    }
}

Rows::Rows(const int* lengths, int count) {
    for (int b = 0; b < count; b++) {
        longest = std::max(longest, lengths[b]);
        begin.insert(begin.end(), lengths[b], (int)begin.size());
        size.insert(size.end(), lengths[b], lengths[b]);
    }
}

// All engines, whose locks a fork takes first: a child in which another thread of its parent held one would wait
// for ever.
struct Engine::Forks {
    std::mutex mutex;
    std::vector<Engine*> engines;

    static Forks& all() {
        static Forks* made = new Forks;  // never destroyed: engines may outlive static objects
        return *made;
    }
    Forks() {
#if !defined(_WIN32)
        pthread_atfork([] { all().lock(); }, [] { all().unlock(); }, [] { all().unlock(); });
#endif
    }
    void lock() {
        mutex.lock();
        for (Engine* each : engines) {
            each->mutex.lock();
            each->cells.mutex.lock();
        }
    }
    void unlock() {
        for (Engine* each : engines) {
            each->cells.mutex.unlock();
            each->mutex.unlock();
        }
        mutex.unlock();
    }
};

Engine::Engine(std::shared_ptr<const Network> network, const Kernels* kernels, int threads, Engine* of)
    : cells(network->cell_floats(network->decoder)), network(network), kernels(kernels), threads(threads), of(of) {
    Forks& forks = Forks::all();
    std::lock_guard<std::mutex> lock(forks.mutex);
    forks.engines.push_back(this);
}

Engine::~Engine() {
    Forks& forks = Forks::all();
    std::lock_guard<std::mutex> lock(forks.mutex);
    forks.engines.erase(std::find(forks.engines.begin(), forks.engines.end(), this));
}

void Engine::linear(Workspace& space, const Linear& w, const float* x, int n, int ldx, float* y, int ldy,
                    Epilogue epilogue) {
    const void* inputs = x;
    Grid* grids = nullptr;
    int step = ldx;
    if (w.type != Type::fp32) {
        step = w.groups() * w.group();
        inputs = space.quantised.get((size_t)n * step * (w.type == Type::int8 ? 1 : 2) / sizeof(float) + 1);
        if (w.type == Type::int8) {
            grids = (Grid*)space.scales.get(2 * (size_t)n);
            kernels->to_int8(x, n, w.inputs, ldx, (uint8_t*)inputs, step, grids);
        } else {
            kernels->to_bf16(x, n, w.inputs, ldx, (uint16_t*)inputs, step);
        }
    }
    const double work = (double)n * w.outputs * w.inputs / (w.type == Type::int8 ? 4 : 1);
    const size_t bytes = step * (w.type == Type::fp32 ? sizeof(float) : w.type == Type::bf16 ? 2 : 1);
    threads.share(w.panels(), threads.parts(w.panels(), work / PART), [&](int, int first, int last) {
        const int block = n > CHUNK ? BLOCK : n;
        for (int i = 0; i < n; i += block)
            kernels->linear(w, (const char*)inputs + i * bytes, grids ? grids + i : nullptr, std::min(block, n - i),
                            step, y + (size_t)i * ldy, ldy, first, last, epilogue);
    });
}

void Engine::normed(const Norm& norm, const float* x, int n, float* y, int step) {
    const int d = norm.features;
    for (int i = 0; i < n; i++) {
        const float* from = x + (size_t)i * step;
        float* to = y + (size_t)i * step;
        if (!norm.gain) {
            if (from != to) std::memcpy(to, from, step * sizeof(float));
        } else if (norm.bias) {
            kernels->layer_norm(from, d, norm.gain, norm.bias, norm.eps, to);
        } else {
            kernels->rms_norm(from, d, norm.gain, norm.eps, to);
        }
    }
}

void Engine::vector(const Embedding& embedding, int word, float* x) {
    kernels->row(*embedding.words, word, embedding.scale, x);
    std::fill(x + embedding.features, x + step_of(embedding.features), 0.0f);
}

void Engine::embed(const Embedding& embedding, const int* words, const int* positions, int n, float* x) {
    for (int i = 0; i < n; i++) vector(embedding, words[i], x + (size_t)i * step_of(embedding.features));
    place(embedding, positions, n, x);
}

void Engine::place(const Embedding& embedding, const int* positions, int n, float* x) {
    const int d = embedding.features, step = step_of(d);
    for (int i = 0; embedding.positions && i < n; i++)
        kernels->add(x + (size_t)i * step, embedding.positions + (size_t)positions[i] * d, d);
    if (embedding.norm.gain) normed(embedding.norm, x, n, x);
}

void Engine::finish(float* row, float* to) {
    normed(network->decoder.norm, row, 1, row);
    for (int k = 0; k < network->decoder.embedding.features; k++) to[k] = row[k] * network->output_scale;
}

// By distance from 1 - longest to longest - 1, of each head; null: the stack has none.
const float* Engine::biases(Workspace& space, const Stack& stack, int longest) {
    if (!stack.relative) return nullptr;
    const int heads = stack.layers[0].heads, most = stack.farthest, span = 2 * longest - 1;
    float* to = space.biases.get((size_t)heads * span);
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < span; i++)
            to[h * span + i] = stack.relative[h * (2 * most + 1) + most + std::clamp(i - longest + 1, -most, most)];
    return to;
}

void Engine::feed_forward(Workspace& space, const FeedForward& ffn, bool norm_first, float* x, int n) {
    const int step = step_of(ffn.norm.features);
    if (n > CHUNK) {
        feed_forward(space, ffn, norm_first, x, CHUNK);
        return feed_forward(space, ffn, norm_first, x + (size_t)CHUNK * step, n - CHUNK);
    }
    sublayer(space, ffn.norm, norm_first, x, n, [&](const float* y) { feed(space, ffn, y, n, x, true); });
}

void Engine::feed(Workspace& space, const FeedForward& ffn, const float* y, int n, float* to, bool residual) {
    const int step = step_of(ffn.norm.features);
    const int wide = ffn.up->width() + LANES;  // else rows share few sets of the cache
    float* inner = space.inner.get((size_t)n * wide);
    if (ffn.gate) {
        float* gated = space.gated.get((size_t)n * wide);
        linear(space, *ffn.gate, y, n, step, inner, wide, {ffn.activation, false});
        linear(space, *ffn.up, y, n, step, gated, wide);
        for (int i = 0; i < n; i++)
            kernels->multiply(inner + (size_t)i * wide, gated + (size_t)i * wide, wide, Activation::none);
    } else {
        linear(space, *ffn.up, y, n, step, inner, wide, {ffn.activation, false});
    }
    if (ffn.inner.gain) normed(ffn.inner, inner, n, inner, wide);
    linear(space, *ffn.down, inner, n, wide, to, step, {Activation::none, residual});
}

namespace {

// What a token attends to: the list, its own place in it, and where in its rows keys and values begin, those of a
// head `head` floats behind those of the one before.
struct Where {
    Attended list;
    int at, key, value, head;
};

const auto unseen = [](int, int, const float*, int) {};

// Of a token in a recurrent layer, and of the token before it; null: it is the first.
struct State {
    float* own;
    const float* before;
};

}  // namespace

// Hands the rows that `in` projects to kept(rows, floats of each); then each token attends to over(token), and
// seen(token, head, weights, count) gets what its weights are, but for their sum.
template <class Kept, class Over, class Seen>
void Engine::attention(Workspace& space, const Layer& layer, const Norm& norm, const Linear& in, const Linear& out,
                       float* x, int n, int longest, const float* biases, Kept kept, Over over, Seen seen) {
    const int heads = layer.heads, f = layer.features, width = layer.width(), wide = in.width();
    const int step = step_of(norm.features);
    sublayer(space, norm, layer.norm_first, x, n, [&](const float* y) {
        float* q = space.projected.get((size_t)n * wide);
        linear(space, in, y, n, step, q, wide);
        kept(q, wide);
        float* attended = space.attended.get((size_t)n * width);
        const int room = rounded(longest, LANES), span = 2 * longest - 1;
        const int parts = threads.parts(n * heads, 2.0 * n * longest * width / PART);
        float* weights = space.weights.get((size_t)parts * room);
        threads.share(n * heads, parts, [&](int part, int first, int last) {
            for (int i = first; i < last; i++) {
                const int token = i / heads, head = i % heads;
                const Where where = over(token);
                const float* bias = biases ? biases + (size_t)head * span + longest - 1 - where.at : nullptr;
                float* own = weights + (size_t)part * room;
                kernels->attend(q + (size_t)token * wide + head * f, where.list, where.key + head * where.head,
                                where.value + head * where.head, f, layer.scale, bias, own,
                                attended + (size_t)token * width + head * f);
                seen(token, head, own, where.list.count);
            }
        });
        linear(space, out, attended, n, width, x, step, {Activation::none, true});
    });
}

void Engine::attend_rows(Workspace& space, const Layer& layer, float* x, int n, const Rows& rows, const float* biases) {
    const int width = layer.width();
    std::vector<const float*> list(n);
    const auto kept = [&](const float* qkv, int wide) {
        for (int i = 0; i < n; i++) list[i] = qkv + (size_t)i * wide;
    };
    const auto over = [&](int token) {
        const int begin = rows.begin[token];
        return Where{{list.data() + begin, rows.size[token]}, token - begin, width, 2 * width, layer.features};
    };
    attention(space, layer, layer.self_norm, *layer.qkv, *layer.out, x, n, rows.longest, biases, kept, over, unseen);
}

// index: of the layer in the decoder; first: of the tokens in the pass.
void Engine::attend_sources(Workspace& space, const Layer& layer, float* x, int n, int index,
                            const std::shared_ptr<const Memory>* sources, const Watched* watched, int first) {
    int longest = 0;
    for (int i = 0; i < n; i++) longest = std::max(longest, sources[i]->length);
    const auto none = [](const float*, int) {};
    const auto over = [&](int token) {
        const Memory& source = *sources[token];
        const int part = source.length * layer.features;  // of keys or values of a head
        return Where{{source.rows[index].data(), source.length, source.halves}, 0, 0, part, 2 * part};
    };
    const auto all = [&](auto seen) {
        attention(space, layer, layer.cross_norm, *layer.cross_q, *layer.cross_out, x, n, longest, nullptr, none, over,
                  seen);
    };
    if (!watched) return all(unseen);
    all([&](int token, int head, const float* weights, int count) {
        const int row = watched->rows[index][head];
        if (row < 0) return;
        float* to = watched->weights + ((size_t)row * watched->tokens + first + token) * watched->positions;
        double sum = 0.0;
        for (int j = 0; j < count; j++) sum += weights[j];
        for (int j = 0; j < count; j++) to[j] = (float)(weights[j] / sum);
    });
}

// A simpler simple recurrent unit (Kim et al. 2019). The states are computed one by one in the order of the tokens,
// so that they do not depend on the pass; each follows an earlier one or a token of an earlier pass.
template <class Of>
void Engine::recur(Workspace& space, const Layer& layer, float* x, int n, Of of) {
    const Linear& in = *layer.recurrence;
    const int d = in.inputs, wide = in.width(), step = step_of(d);
    sublayer(space, layer.self_norm, layer.norm_first, x, n, [&](const float* y) {
        float* projected = space.projected.get((size_t)n * wide);
        linear(space, in, y, n, step, projected, wide);
        for (int i = 0; i < n; i++) {
            float *candidate = projected + (size_t)i * wide, *forget = candidate + d;
            const State state = of(i);
            if (state.before) {
                std::memcpy(state.own, state.before, d * sizeof(float));
                kernels->multiply(state.own, forget, d, Activation::sigmoid);
            } else {
                std::memset(state.own, 0, d * sizeof(float));
            }
            for (int k = 0; k < d; k++) forget[k] = -forget[k];  // 1 - sigmoid(f) is sigmoid(-f)
            kernels->multiply(candidate, forget, d, Activation::sigmoid);
            kernels->add(state.own, candidate, d);
            for (int k = 0; k < d; k++) candidate[k] = std::max(state.own[k], 0.0f);
            kernels->add(x + (size_t)i * step, candidate, d);
        }
    });
}

namespace {

// The lists of cells that the tokens of a pass see: a chain's tokens share one, of which each sees a part.
class Lists {
  public:
    Lists(Cells& cells, const Pending& pending) {
        const int n = (int)pending.cells.size();
        lists.resize(n);
        std::unordered_map<int, std::vector<const float*>*> shared;  // of each context, its longest chain
        std::unordered_map<int, int> counts, tips;                   // tokens of each, and the chain's last
        for (int context : pending.contexts) counts[context]++;
        for (int i = 0; i < n; i++) {
            const int context = pending.contexts[i], parent = pending.parents[i];
            const float* own = reinterpret_cast<const float*>(pending.cells[i]);
            auto& chain = shared[context];
            if (!chain) {
                const auto& held = cells.of(context).cells;
                chain = &store.emplace_back();
                chain->reserve(held.size() + counts[context]);  // never moved: others point into it
                for (Cell* cell : held) chain->push_back(reinterpret_cast<const float*>(cell));
                base[context] = (int)held.size();
                tips[context] = -1;
            }
            if (parent == tips[context]) {
                chain->push_back(own);
                tips[context] = i;
                lists[i] = {chain->data(), (int)chain->size()};
            } else {
                const Attended before = parent < 0 ? Attended{chain->data(), base[context]} : lists[parent];
                auto& branch = store.emplace_back(before.rows, before.rows + before.count);
                branch.push_back(own);
                lists[i] = {branch.data(), (int)branch.size()};
            }
        }
    }
    const Attended& of(int token) const { return lists[token]; }

  private:
    std::deque<std::vector<const float*>> store;
    std::unordered_map<int, int> base;
    std::vector<Attended> lists;
};

}  // namespace

std::shared_ptr<Pending> Engine::run(const Tokens& tokens, const Want& want, Read& found, const Watched* watched) {
    const Rounding rounding;
    const int n = tokens.count;
    threads.adapt();
    if (n < 1) throw PassFault("a pass has no token");
    if (!network->decoder.embedding.words) throw PassFault("the model has no decoder");
    for (int i = 0; i < n; i++) {
        if (tokens.words[i] < 0 || tokens.words[i] >= network->words)
            throw PassFault("word " + number(tokens.words[i]) + " of token " + number(i) + " is none of " +
                            number(network->words));
        if (tokens.positions[i] < 0 || tokens.positions[i] >= network->most_target)
            throw PassFault("position " + number(tokens.positions[i]) + " of token " + number(i) + " is none of " +
                            number(network->most_target));
    }
    Sources sources(n);
    for (int i = 0; i < n; i++)
        sources[i] = i && tokens.memories[i] == tokens.memories[i - 1] ? sources[i - 1] : memory(tokens.memories[i]);
    for (int i = 0; watched && i < n; i++)
        if (sources[i] != sources[0]) throw PassFault("weights of attention are those of one source");
    if (watched && watched->positions != sources[0]->length) throw PassFault("the source has another length");
    const int d = network->decoder.embedding.features, step = step_of(d);
    found.hidden.resize(want.only.size() * (size_t)d);
    size_t read_so_far = 0;
    const auto enter = [&](Workspace&, int first, int m, float* x) {
        embed(network->decoder.embedding, tokens.words + first, tokens.positions + first, m, x);
    };
    const auto leave = [&](Workspace& space, int first, int m, float* x) {
        for (; read_so_far < want.only.size() && want.only[read_so_far] < first + m; read_so_far++)
            finish(x + (size_t)(want.only[read_so_far] - first) * step, found.hidden.data() + read_so_far * d);
        if (first + m == n) read(space, want, found);
    };
    return decode(sources, tokens.contexts, tokens.parents, enter, leave, watched);
}

std::shared_ptr<Pending> Engine::decode(const Sources& sources, const int* contexts, const int* parents,
                                        const Through& enter, const Through& leave, const Watched* watched) {
    const int n = (int)sources.size();
    std::shared_ptr<Pending> pending;
    std::unique_ptr<Lists> lists;
    {
        std::lock_guard<std::mutex> lock(cells.mutex);
        pending = cells.begin(contexts, parents, n);
    }
    try {
        {
            std::lock_guard<std::mutex> lock(cells.mutex);
            lists.reset(new Lists(cells, *pending));
        }
        Lease lease(*this);
        Workspace& space = *lease.space;
        const Stack& stack = network->decoder;
        for (int begin = 0; begin < n; begin += CHUNK) {
            const int m = std::min(CHUNK, n - begin);
            int longest = 0;
            for (int i = begin; i < begin + m; i++) longest = std::max(longest, lists->of(i).count);
            float* x = space.x.get((size_t)m * step_of(stack.embedding.features));
            enter(space, begin, m, x);
            const float* relative = biases(space, stack, longest);
            int offset = 0;  // of the layer's keys in a cell
            for (const Layer& layer : stack.layers) {
                if (layer.skips_self) {
                    pass_over(layer.self_norm, layer.norm_first, x, m);
                } else if (layer.recurrence) {
                    recur(space, layer, x, m, [&](int token) {
                        const Attended& list = lists->of(begin + token);
                        const float* before = list.count > 1 ? list.rows[list.count - 2] : nullptr;
                        return State{pending->cells[begin + token]->data() + offset,
                                     before ? before + Cell::HEAD + offset : nullptr};
                    });
                } else {
                    const int width = layer.width();
                    const auto kept = [&](const float* qkv, int wide) {
                        for (int i = 0; i < m; i++)
                            std::memcpy(pending->cells[begin + i]->data() + offset, qkv + (size_t)i * wide + width,
                                        2 * width * sizeof(float));
                    };
                    const auto over = [&](int token) {
                        const Attended& list = lists->of(begin + token);
                        return Where{list, list.count - 1, Cell::HEAD + offset, Cell::HEAD + offset + width,
                                     layer.features};
                    };
                    attention(space, layer, layer.self_norm, *layer.qkv, *layer.out, x, m, longest, relative, kept,
                              over, unseen);
                }
                if (layer.skips_source)
                    pass_over(layer.cross_norm, layer.norm_first, x, m);
                else
                    attend_sources(space, layer, x, m, (int)(&layer - stack.layers.data()), sources.data() + begin,
                                   watched, begin);
                if (layer.skips_ffn)
                    pass_over(layer.ffn.norm, layer.norm_first, x, m);
                else
                    feed_forward(space, layer.ffn, layer.norm_first, x, m);
                offset += layer.cell_floats();
                if (interrupted) interrupted();
            }
            leave(space, begin, m, x);
        }
    } catch (...) {
        cells.end(*pending, nullptr, 0);
        throw;
    }
    cells.computed(*pending);
    return pending;
}

}  // namespace nartk

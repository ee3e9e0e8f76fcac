#include "engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <unordered_set>

namespace nartk {

static constexpr int READ = 32;  // tokens whose logits are there at once

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

size_t Network::kv_floats(const Stack& stack) const {
    size_t floats = 0;
    for (const Layer& layer : stack.layers) floats += 2 * (size_t)layer.width();
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

Engine::Engine(std::shared_ptr<const Network> network, const Kernels* kernels, int threads)
    : cells(network->kv_floats(network->decoder)), network(network), kernels(kernels), threads(threads) {
    Forks& forks = Forks::all();
    std::lock_guard<std::mutex> lock(forks.mutex);
    forks.engines.push_back(this);
}

Engine::~Engine() {
    Forks& forks = Forks::all();
    std::lock_guard<std::mutex> lock(forks.mutex);
    forks.engines.erase(std::find(forks.engines.begin(), forks.engines.end(), this));
}

int Engine::stride() const { return rounded(network->features, PANEL); }

void Engine::linear(Workspace& space, const Linear& w, const float* x, int n, int ldx, float* y, int ldy,
                    Epilogue epilogue) {
    const void* inputs = x;
    float* scales = nullptr;
    int step = ldx;
    if (w.type != Type::fp32) {
        step = w.groups() * w.group();
        inputs = space.quantised.get((size_t)n * step * (w.type == Type::int8 ? 1 : 2) / sizeof(float) + 1);
        if (w.type == Type::int8) {
            scales = space.scales.get(n);
            kernels->to_int8(x, n, w.inputs, ldx, (uint8_t*)inputs, step, scales);
        } else {
            kernels->to_bf16(x, n, w.inputs, ldx, (uint16_t*)inputs, step);
        }
    }
    const double work = (double)n * w.outputs * w.inputs / (w.type == Type::int8 ? 4 : 1);
    const size_t bytes = step * (w.type == Type::fp32 ? sizeof(float) : w.type == Type::bf16 ? 2 : 1);
    threads.share(w.panels(), threads.parts(w.panels(), work / PART), [&](int, int first, int last) {
        const int block = n > CHUNK ? BLOCK : n;
        for (int i = 0; i < n; i += block)
            kernels->linear(w, (const char*)inputs + i * bytes, scales ? scales + i : nullptr, std::min(block, n - i),
                            step, y + (size_t)i * ldy, ldy, first, last, epilogue);
    });
}

void Engine::normed(const Norm& norm, const float* x, int n, float* y, int d, int step) {
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
    std::fill(x + network->features, x + stride(), 0.0f);
}

void Engine::embed(const Embedding& embedding, const int* words, const int* positions, int n, float* x) {
    for (int i = 0; i < n; i++) vector(embedding, words[i], x + (size_t)i * stride());
    place(embedding, positions, n, x);
}

void Engine::place(const Embedding& embedding, const int* positions, int n, float* x) {
    const int d = network->features, step = stride();
    for (int i = 0; embedding.positions && i < n; i++)
        kernels->add(x + (size_t)i * step, embedding.positions + (size_t)positions[i] * d, d);
    if (embedding.norm.gain) normed(embedding.norm, x, n, x);
}

void Engine::finish(float* row, float* to) {
    normed(network->decoder.norm, row, 1, row);
    for (int k = 0; k < network->features; k++) to[k] = row[k] * network->output_scale;
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
    const int step = stride(), wide = ffn.up->width() + LANES;  // else rows share few sets of the cache
    if (n > CHUNK) {
        feed_forward(space, ffn, norm_first, x, CHUNK);
        return feed_forward(space, ffn, norm_first, x + (size_t)CHUNK * step, n - CHUNK);
    }
    sublayer(space, ffn.norm, norm_first, x, n, [&](const float* y) {
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
        linear(space, *ffn.down, inner, n, wide, x, step, {Activation::none, true});
    });
}

namespace {

// What a token attends to: the list, its own place in it, and where in its rows keys and values begin, those of a
// head `head` floats behind those of the one before.
struct Where {
    Attended list;
    int at, key, value, head;
};

}  // namespace

// Hands the rows that `in` projects to kept(rows, floats of each); then each token attends to over(token).
template <class Kept, class Over>
void Engine::attention(Workspace& space, const Layer& layer, const Norm& norm, const Linear& in, const Linear& out,
                       float* x, int n, int longest, const float* biases, Kept kept, Over over) {
    const int heads = layer.heads, f = layer.features, width = layer.width(), wide = in.width(), step = stride();
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
                kernels->attend(q + (size_t)token * wide + head * f, where.list, where.key + head * where.head,
                                where.value + head * where.head, f, layer.scale, bias, weights + (size_t)part * room,
                                attended + (size_t)token * width + head * f);
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
    attention(space, layer, layer.self_norm, *layer.qkv, *layer.out, x, n, rows.longest, biases, kept, [&](int token) {
        const int begin = rows.begin[token];
        return Where{{list.data() + begin, rows.size[token]}, token - begin, width, 2 * width, layer.features};
    });
}

// index: of the layer in the decoder.
void Engine::attend_sources(Workspace& space, const Layer& layer, float* x, int n, int index,
                            const std::shared_ptr<const Memory>* sources) {
    int longest = 0;
    for (int i = 0; i < n; i++) longest = std::max(longest, sources[i]->length);
    const auto none = [](const float*, int) {};
    attention(space, layer, layer.cross_norm, *layer.cross_q, *layer.cross_out, x, n, longest, nullptr, none,
              [&](int token) {
                  const Memory& source = *sources[token];
                  const int part = source.length * layer.features;  // of keys or values of a head
                  return Where{{source.rows[index].data(), source.length, source.halves}, 0, 0, part, 2 * part};
              });
}

template <class Enter>
Engine::Made Engine::encode_all(Workspace& space, const Stack& stack, const Stack& readers,
                                const std::vector<int>& lengths, Enter enter, const Made& prompts) {
    const int step = stride(), d = network->features, count = (int)lengths.size();
    const bool speech = network->hears() && &stack == &network->encoder;
    size_t floats = 0;  // of keys and values of a position
    // A word reads keys and values of all the hundreds of positions of sound: in int8, as fp16, half as many bytes.
    bool halves = network->hears();
    for (const Layer& layer : readers.layers) {
        floats += layer.cross_kv ? 2 * (size_t)layer.width() : 0;
        halves &= !layer.cross_kv || layer.cross_kv->type == Type::int8;
    }
    Made made;
    for (int begin = 0; begin < count;) {
        int end = begin, n = 0;  // sources that go together
        while (end < count && (end == begin || n + lengths[end] <= CHUNK)) n += lengths[end++];
        const Rows rows(lengths.data() + begin, end - begin);
        std::vector<int> positions(n);
        for (int i = 0; i < n; i++) positions[i] = i - rows.begin[i];
        float* x = space.x.get((size_t)n * step);
        enter(begin, end, x);
        place(stack.embedding, positions.data(), n, x);
        const float* relative = biases(space, stack, rows.longest);
        const auto distances = speech ? this->distances(space, rows.longest) : nullptr;
        std::vector<std::shared_ptr<const Memory>> read;
        for (int b = begin; b < end && !prompts.empty(); b++) read.insert(read.end(), lengths[b], prompts[b]);
        for (const Layer& layer : stack.layers) {
            if (speech) {
                speech_layer(space, layer, distances.get(), read, x, rows);
            } else {
                attend_rows(space, layer, x, n, rows, relative);
                feed_forward(space, layer.ffn, layer.norm_first, x, n);
            }
            if (interrupted) interrupted();
        }
        normed(stack.norm, x, n, x);
        for (int b = begin, i = 0; b < end; i += lengths[b++]) {
            auto memory = std::make_shared<Memory>();
            memory->length = lengths[b];
            memory->output.resize((size_t)lengths[b] * d);
            for (int j = 0; j < lengths[b]; j++)
                std::memcpy(memory->output.data() + (size_t)j * d, x + (size_t)(i + j) * step, d * sizeof(float));
            memory->halves = halves;
            memory->kv.get(lengths[b] * floats / (halves ? 2 : 1));
            memory->rows.resize(readers.layers.size());
            if (&stack == &network->encoder && network->parallel.fire_out) fire(space, *memory);
            made.push_back(memory);
        }
        size_t before = 0;  // floats of a position in the layers before
        for (size_t l = 0; l < readers.layers.size(); l++) {
            const Layer& layer = readers.layers[l];
            if (!layer.cross_kv) continue;
            const int wide = layer.cross_kv->width(), f = layer.features, heads = layer.heads;
            float* kv = space.projected.get((size_t)n * wide);
            linear(space, *layer.cross_kv, x, n, step, kv, wide);
            for (int b = begin, i = 0; b < end; i += lengths[b++]) {
                const int length = lengths[b];
                const size_t size = halves ? sizeof(uint16_t) : sizeof(float);
                char* to = (char*)made[b]->kv.get(0) + before * length * size;
                made[b]->rows[l].resize(length);
                for (int j = 0; j < length; j++) {
                    made[b]->rows[l][j] = (const float*)(to + (size_t)j * f * size);
                    for (int part = 0; part < 2 * heads; part++) {  // keys of all heads, then values
                        char* at = to + ((size_t)(part % heads * 2 + part / heads) * length + j) * f * size;
                        const float* from = kv + (size_t)(i + j) * wide + part * f;
                        if (halves)
                            kernels->to_fp16(from, f, (uint16_t*)at);
                        else
                            std::memcpy(at, from, f * sizeof(float));
                    }
                }
            }
            before += 2 * (size_t)layer.width();
        }
        begin = end;
    }
    return made;
}

std::vector<int> Engine::keep(const Made& made) {
    std::lock_guard<std::mutex> lock(mutex);
    std::vector<int> handles;
    for (auto& memory : made) {
        memories[next_memory] = memory;
        handles.push_back(next_memory++);
    }
    return handles;
}

void Engine::check_words(const int* words, int count, int index) const {
    for (int i = 0; i < count; i++)
        if (words[i] < 0 || words[i] >= network->source_words)
            throw PassFault("word " + number(words[i]) + " of source " + number(index) + " is none of " +
                            number(network->source_words));
}

std::vector<int> Engine::encode(const int* tokens, const int* of_each, int count) {
    const Rounding rounding;
    threads.adapt();
    if (network->hears()) throw PassFault("the model reads frames, not words");
    const std::vector<int> lengths(of_each, of_each + count);
    std::vector<const int*> words(count);
    for (int b = 0; b < count; tokens += lengths[b++]) {
        if (lengths[b] < 1 || lengths[b] > network->most_source)
            throw PassFault("source " + number(b) + " has " + number(lengths[b]) + " tokens, not 1 to " +
                            number(network->most_source));
        check_words(tokens, lengths[b], b);
        words[b] = tokens;
    }
    Lease lease(*this);
    const Stack& stack = network->encoder;
    const Made made = encode_all(*lease.space, stack, network->decoder, lengths, [&](int first, int last, float* x) {
        for (int b = first; b < last; b++)
            for (int i = 0; i < lengths[b]; i++, x += stride()) vector(stack.embedding, words[b][i], x);
    });
    for (int b = 0; b < count; b++) made[b]->tokens.assign(words[b], words[b] + lengths[b]);
    return keep(made);
}

std::vector<int> Engine::encode_speech(const std::vector<Speech>& sources) {
    const Rounding rounding;
    threads.adapt();
    if (!network->hears()) throw PassFault("the model reads words, not frames");
    const Subsampling& subsampling = network->subsampling;
    const Embedding& words = network->prompt.embedding;
    const int least = subsampling.least(), most = words.words ? words.count : 0;
    std::vector<int> positions, read;
    for (int b = 0; b < (int)sources.size(); b++) {
        const Speech& source = sources[b];
        if (source.length < least || source.length > network->most_source)
            throw PassFault("source " + number(b) + " has " + number(source.length) + " frames, not " + number(least) +
                            " to " + number(network->most_source));
        for (size_t i = 0; i < (size_t)source.length * subsampling.features; i++)
            if (!std::isfinite(source.frames[i]))
                throw PassFault("NaN or infinity in frame " + number((long long)i / subsampling.features) +
                                " of source " + number(b));
        const bool prompted = !network->prompt.layers.empty();
        if (source.word_count > most)
            throw PassFault("source " + number(b) + " has " + number(source.word_count) +
                            " words in front of its frames, more than " + number(most));
        if (source.prompt_count < prompted || source.prompt_count > prompted * most)
            throw PassFault("source " + number(b) + " has a prompt of " + number(source.prompt_count) + " words, not " +
                            number(prompted) + " to " + number(prompted * most));
        check_words(source.words, source.word_count, b);
        check_words(source.prompt, source.prompt_count, b);
        positions.push_back(source.word_count + subsampling.positions(source.length));
        read.push_back(source.prompt_count);
    }
    Lease lease(*this);
    Workspace& space = *lease.space;
    Made prompts;
    if (!network->prompt.layers.empty())
        prompts = encode_all(space, network->prompt, network->encoder, read, [&](int first, int last, float* x) {
            for (int b = first; b < last; b++)
                for (int i = 0; i < read[b]; i++, x += stride()) vector(words, sources[b].prompt[i], x);
        });
    const auto enter = [&](int first, int last, float* x) {
        for (int b = first; b < last; b++) {
            const int front = sources[b].word_count;
            for (int i = 0; i < front; i++, x += stride()) vector(words, sources[b].words[i], x);
            subsample(space, sources[b].frames, sources[b].length, x);
            x += (size_t)(positions[b] - front) * stride();
        }
    };
    return keep(encode_all(space, network->encoder, network->decoder, positions, enter, prompts));
}

void Engine::free(const int* handles, int count) {
    std::lock_guard<std::mutex> lock(mutex);
    std::unordered_set<int> seen;
    for (int i = 0; i < count; i++) {
        if (!memories.count(handles[i])) throw PassFault("encoded source " + number(handles[i]) + " is not there");
        if (!seen.insert(handles[i]).second)
            throw PassFault("encoded source " + number(handles[i]) + " is named twice");
    }
    for (int i = 0; i < count; i++) memories.erase(handles[i]);
}

std::shared_ptr<const Memory> Engine::memory(int handle) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = memories.find(handle);
    if (found == memories.end()) throw PassFault("encoded source " + number(handle) + " is not there");
    return found->second;
}

size_t Engine::memories_in_use() {
    std::lock_guard<std::mutex> lock(mutex);
    return memories.size();
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

std::shared_ptr<Pending> Engine::run(const Tokens& tokens, const Want& want, Read& found) {
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
    std::vector<std::shared_ptr<const Memory>> sources(n);
    for (int i = 0; i < n; i++)
        sources[i] = i && tokens.memories[i] == tokens.memories[i - 1] ? sources[i - 1] : memory(tokens.memories[i]);
    std::shared_ptr<Pending> pending;
    std::unique_ptr<Lists> lists;
    {
        std::lock_guard<std::mutex> lock(cells.mutex);
        pending = cells.begin(tokens.contexts, tokens.parents, n);
    }
    try {
        {
            std::lock_guard<std::mutex> lock(cells.mutex);
            lists.reset(new Lists(cells, *pending));
        }
        Lease lease(*this);
        Workspace& space = *lease.space;
        const Stack& stack = network->decoder;
        const int step = stride(), d = network->features;
        found.hidden.resize(want.only.size() * (size_t)d);
        size_t read_so_far = 0;
        for (int begin = 0; begin < n; begin += CHUNK) {
            const int m = std::min(CHUNK, n - begin);
            int longest = 0;
            for (int i = begin; i < begin + m; i++) longest = std::max(longest, lists->of(i).count);
            float* x = space.x.get((size_t)m * step);
            embed(stack.embedding, tokens.words + begin, tokens.positions + begin, m, x);
            const float* relative = biases(space, stack, longest);
            int offset = 0;  // of the layer's keys in a cell
            for (const Layer& layer : stack.layers) {
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
                attention(space, layer, layer.self_norm, *layer.qkv, *layer.out, x, m, longest, relative, kept, over);
                attend_sources(space, layer, x, m, (int)(&layer - stack.layers.data()), sources.data() + begin);
                feed_forward(space, layer.ffn, layer.norm_first, x, m);
                offset += 2 * width;
                if (interrupted) interrupted();
            }
            for (; read_so_far < want.only.size() && want.only[read_so_far] < begin + m; read_so_far++)
                finish(x + (size_t)(want.only[read_so_far] - begin) * step, found.hidden.data() + read_so_far * d);
        }
        read(space, want, found);
    } catch (...) {
        cells.end(*pending, nullptr, 0);
        throw;
    }
    cells.computed(*pending);
    return pending;
}

void Engine::logits(const Linear& head, const float* hidden, int count, float* to) {
    const Rounding rounding;
    Lease lease(*this);
    const int d = network->features, wide = head.width();
    for (int begin = 0; begin < count; begin += READ) {
        const int n = std::min(READ, count - begin);
        float* rows = lease.space->logits.get((size_t)n * wide);
        linear(*lease.space, head, hidden + (size_t)begin * d, n, d, rows, wide);
        for (int i = 0; i < n; i++)
            std::copy_n(rows + (size_t)i * wide, head.outputs, to + (size_t)(begin + i) * head.outputs);
    }
}

void Engine::read(Workspace& space, const Want& want, Read& found) {
    const int n = (int)want.only.size(), d = network->features, wide = found.head->width(), words = found.head->outputs;
    found.best.resize(n);
    found.log_probs.resize(n);
    if (want.top) {
        found.top.assign((size_t)n * want.top, -1);
        found.top_log_probs.assign((size_t)n * want.top, -INFINITY);
    }
    if (want.margin) found.margins.resize(n);
    if (want.given) found.given_log_probs.assign(n, 0.0f);
    if (want.draw.uniforms) {
        found.drawn.resize(n);
        found.drawn_log_probs.resize(n);
    }
    for (int begin = 0; begin < n; begin += READ) {
        if (interrupted) interrupted();
        const int m = std::min(READ, n - begin);
        float* rows = space.logits.get((size_t)m * wide);
        linear(space, *found.head, found.hidden.data() + (size_t)begin * d, m, d, rows, wide);
        threads.share(m, threads.parts(m, (double)m * words * 8 / PART), [&](int, int first, int last) {
            std::vector<float> copy;
            for (int i = first; i < last; i++) read_row(rows + (size_t)i * wide, begin + i, want, found, copy);
        });
    }
}

namespace {

// The best `count` words of a row, of equal ones the lowest ids first; forbidden ones are NaN.
void best_words(const float* row, int words, int count, int* to) {
    int held = 0;
    for (int v = 0; v < words; v++) {
        const float x = row[v];
        if (std::isnan(x) || (held == count && !(x > row[to[held - 1]]))) continue;
        int at = held < count ? held++ : count - 1;
        for (; at > 0 && row[to[at - 1]] < x; at--) to[at] = to[at - 1];
        to[at] = v;
    }
}

}  // namespace

void Engine::read_row(const float* row, int index, const Want& want, Read& found, std::vector<float>& copy) {
    const int words = found.head->outputs;
    float most;
    int best = kernels->best(row, words, &most);
    const bool empty = most == -INFINITY && std::none_of(row, row + words, [](float x) { return std::isnan(x); });
    const float total = kernels->exp_sum(row, words, most);
    const float log_total = (float)std::log((double)total);
    if (std::isnan(total) && !empty)
        throw PassFault("NaN or infinity in the scores of token " + number(want.only[index]));
    const auto log_prob = [&](int word) { return empty ? -INFINITY : (row[word] - most) - log_total; };
    if (want.given && want.given[index] >= 0) found.given_log_probs[index] = log_prob(want.given[index]);
    const float* left = row;
    const int first = want.banned ? want.ban_offsets[index] : 0, last = want.banned ? want.ban_offsets[index + 1] : 0;
    if (first < last) {
        copy.assign(row, row + words);
        for (int i = first; i < last; i++) copy[want.banned[i]] = NAN;  // which is never the largest
        left = copy.data();
        float largest;
        best = kernels->best(left, words, &largest);
        if (std::isnan(left[best])) throw PassFault("all words are forbidden after token " + number(want.only[index]));
    }
    found.best[index] = best;
    found.log_probs[index] = log_prob(best);
    if (want.top) {
        int* top = found.top.data() + (size_t)index * want.top;
        best_words(left, words, want.top, top);
        for (int i = 0; i < want.top && top[i] >= 0; i++)
            found.top_log_probs[(size_t)index * want.top + i] = log_prob(top[i]);
    }
    if (want.margin) {
        int two[2] = {-1, -1};
        best_words(left, words, 2, two);
        const bool tie = two[1] >= 0 && left[two[0]] == left[two[1]];  // also of minus infinity
        found.margins[index] = two[1] < 0 ? INFINITY : tie ? 0.0f : left[two[0]] - left[two[1]];
    }
    if (!want.draw.uniforms) return;
    // Inversion in the order of ids, in fp64, over the words that the cuts leave.
    std::vector<double> probs(words);
    const double top = left[best];
    if (top == -INFINITY) throw PassFault("no word has a probability after token " + number(want.only[index]));
    for (int v = 0; v < words; v++)
        probs[v] = std::isnan(left[v]) ? 0.0 : std::exp((left[v] - top) / want.draw.temperature);
    const bool cut_k = want.draw.top_k > 0 && want.draw.top_k < words, cut_p = want.draw.top_p < 1.0;
    if (cut_k || cut_p) {
        std::vector<int> order;
        for (int v = 0; v < words; v++)
            if (!std::isnan(left[v])) order.push_back(v);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return left[a] > left[b]; });
        const int allowed = (int)order.size(), kept = cut_k ? std::min(want.draw.top_k, allowed) : allowed;
        double sum = 0.0, reached = 0.0;
        for (int i = 0; i < kept; i++) sum += probs[order[i]];
        for (int i = 0; i < allowed; i++) {
            if (i >= kept || (cut_p && reached >= want.draw.top_p * sum))
                probs[order[i]] = 0.0;
            else
                reached += probs[order[i]];
        }
    }
    double sum = 0.0, passed = 0.0;
    for (double p : probs) sum += p;
    const double aim = want.draw.uniforms[index] * sum;
    int drawn = -1;
    for (int v = 0; v < words; v++) {
        passed += probs[v];
        if (probs[v] > 0.0) drawn = v;
        if (passed > aim && drawn >= 0) break;
    }
    found.drawn[index] = drawn;
    found.drawn_log_probs[index] = log_prob(drawn);
}

}  // namespace nartk

// Encoded sources: text and frames through the encoder, and the keys and values that the decoder reads of them.
#include "engine.h"

#include <cmath>
#include <cstring>
#include <unordered_set>

namespace nartk {

// Text of so many positions attends in products, as sound does, which takes longer below 32 to 64 of them. A source's
// own length decides, so that no other one changes its sums.
constexpr int MANY = 64;

template <class Enter>
Engine::Made Engine::encode_all(Workspace& space, const Stack& stack, const Stack& readers,
                                const std::vector<int>& lengths, Enter enter, const Made& prompts) {
    const int d = stack.features, step = step_of(d), count = (int)lengths.size();
    const bool widens = stack.embedding.features != d;  // the first layer reads other features than it gives
    const bool speech = network->hears() && &stack == &network->encoder;
    size_t floats = 0;  // of keys and values of a position
    // A word reads keys and values of all the hundreds of positions of sound: in int8, as fp16, half as many bytes.
    bool halves = network->hears();
    for (const Layer& layer : readers.layers) {
        floats += layer.cross_kv ? 2 * (size_t)layer.width() : 0;
        halves &= !layer.cross_kv || layer.cross_kv->type == Type::int8;
    }
    const auto are_many = [&](int positions) { return positions >= MANY && !stack.relative; };
    Made made;
    for (int begin = 0; begin < count;) {
        int end = begin, n = 0;  // sources that go together
        const bool many = are_many(lengths[begin]);
        while (end < count && (end == begin || (n + lengths[end] <= CHUNK && are_many(lengths[end]) == many)))
            n += lengths[end++];
        const Rows rows(lengths.data() + begin, end - begin);
        std::vector<int> positions(n);
        for (int i = 0; i < n; i++) positions[i] = i - rows.begin[i];
        float* x = space.x.get((size_t)n * step);
        float* entered = widens ? space.joined.get((size_t)n * step_of(stack.embedding.features)) : x;
        enter(begin, end, entered);
        place(stack.embedding, positions.data(), n, entered);
        const float* relative = biases(space, stack, rows.longest);
        const auto distances = speech ? this->distances(space, rows.longest) : nullptr;
        std::vector<std::shared_ptr<const Memory>> read;
        for (int b = begin; b < end && !prompts.empty(); b++) read.insert(read.end(), lengths[b], prompts[b]);
        for (const Layer& layer : stack.layers) {
            if (widens && &layer == stack.layers.data()) {
                enter_layer(space, layer, entered, rows, x);
            } else if (speech) {
                speech_layer(space, layer, distances.get(), read, x, rows);
            } else {
                if (many)
                    sublayer(space, layer.self_norm, layer.norm_first, x, n, [&](const float* y) {
                        attend_positions(space, layer, nullptr, y, step, rows, x, step, true);
                    });
                else
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

Engine::Made Engine::read_vectors(Workspace& space, const float* features, const std::vector<int>& lengths) {
    const int d = network->features, step = step_of(d);
    Stack stack;  // of no layers
    stack.features = stack.embedding.features = stack.norm.features = d;
    return encode_all(space, stack, network->decoder, lengths, [&](int first, int last, float* x) {
        for (int b = first; b < last; b++)
            for (int i = 0; i < lengths[b]; i++, features += d, x += step) {
                std::memcpy(x, features, d * sizeof(float));
                std::fill(x + d, x + step, 0.0f);
            }
    });
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
    const int step = step_of(stack.embedding.features);
    const Stack none;  // which reads them: what speaks step by step does when it speaks
    const Stack& readers = network->steps.out ? none : network->decoder;
    const Made made = encode_all(*lease.space, stack, readers, lengths, [&](int first, int last, float* x) {
        for (int b = first; b < last; b++)
            for (int i = 0; i < lengths[b]; i++, x += step) vector(stack.embedding, words[b][i], x);
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
    const int step = step_of(network->encoder.embedding.features), narrow = step_of(words.features);
    Made prompts;
    if (!network->prompt.layers.empty())
        prompts = encode_all(space, network->prompt, network->encoder, read, [&](int first, int last, float* x) {
            for (int b = first; b < last; b++)
                for (int i = 0; i < read[b]; i++, x += narrow) vector(words, sources[b].prompt[i], x);
        });
    const auto front_of = [&](const Speech& source, float* x) {
        const int n = source.word_count;
        float* to = network->front ? space.normed.get((size_t)n * narrow) : x;
        for (int i = 0; i < n; i++) vector(words, source.words[i], to + (size_t)i * narrow);
        if (!network->front || !n) return;
        linear(space, *network->front, to, n, narrow, x, step);
    };
    const auto enter = [&](int first, int last, float* x) {
        for (int b = first; b < last; b++) {
            const int front = sources[b].word_count;
            front_of(sources[b], x);
            x += (size_t)front * step;
            subsample(space, sources[b].frames, sources[b].length, x);
            x += (size_t)(positions[b] - front) * step;
        }
    };
    return keep(encode_all(space, network->encoder, network->decoder, positions, enter, prompts));
}

std::vector<int> Engine::encode_vectors(const float* vectors, const int* of_each, int count) {
    const Rounding rounding;
    threads.adapt();
    if (!network->reads_vectors) throw PassFault("the model encodes its sources itself");
    const std::vector<int> lengths(of_each, of_each + count);
    const float* from = vectors;
    for (int b = 0; b < count; from += (size_t)lengths[b++] * network->features) {
        if (lengths[b] < 1 || lengths[b] > network->most_source)
            throw PassFault("source " + number(b) + " has " + number(lengths[b]) + " positions, not 1 to " +
                            number(network->most_source));
        for (size_t i = 0; i < (size_t)lengths[b] * network->features; i++)
            if (!std::isfinite(from[i])) throw PassFault("NaN or infinity in source " + number(b));
    }
    Lease lease(*this);
    return keep(read_vectors(*lease.space, vectors, lengths));
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
    if (of) return of->memory(handle);
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = memories.find(handle);
    if (found == memories.end()) throw PassFault("encoded source " + number(handle) + " is not there");
    return found->second;
}

size_t Engine::memories_in_use() {
    std::lock_guard<std::mutex> lock(mutex);
    return memories.size();
}

}  // namespace nartk

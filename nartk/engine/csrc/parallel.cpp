// The passes of non-autoregressive networks: canvases, lengths, and the links of graphs.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "engine.h"

namespace nartk {

namespace {

// The source position at the same share of the length as place j of so many; of two the later.
int nearest(int j, int places, int length) {
    const long long last = std::max(places - 1, 1);
    return (int)std::min<long long>(length - 1, (2LL * j * (length - 1) + last) / (2 * last));
}

}  // namespace

// What stands at the places of one row that hold no word, [places,stride].
void Engine::copy_source(Workspace& space, const Memory& source, const float* fired, const int* words, int places,
                         float* x) {
    const Parallel& parallel = network->parallel;
    const int d = network->features, step = step_of(d), length = source.length;
    // What stands in place of words: fires, or of sound what its positions were encoded to.
    const float* rows = parallel.copied == Copied::fires ? fired : nullptr;
    if (parallel.copied == Copied::memory || (!rows && source.tokens.empty())) rows = source.output.data();
    const auto copied = [&](int at, float* to) {
        if (!rows) return vector(network->encoder.embedding, source.tokens[at], to);
        std::memcpy(to, rows + (size_t)at * d, d * sizeof(float));
        std::fill(to + d, to + step, 0.0f);
    };
    if (parallel.copied == Copied::soft) {
        // An attention to nothing but a bias.
        float* vectors = space.projected.get((size_t)length * step);
        std::vector<const float*> list(length);
        for (int i = 0; i < length; i++) {
            list[i] = vectors + (size_t)i * step;
            copied(i, vectors + (size_t)i * step);
        }
        std::vector<float> query(step, 0.0f), bias(rounded(length, LANES)), scores(rounded(length, LANES));
        const float ratio = (float)(length - 1) / (float)std::max(places - 1, 1);
        for (int j = 0; j < places; j++) {
            if (words[j] != COPIED) continue;
            for (int i = 0; i < length; i++) bias[i] = -std::fabs((float)i - (float)j * ratio) / parallel.temperature;
            kernels->attend(query.data(), {list.data(), length}, 0, 0, step, 1.0f, bias.data(), scores.data(),
                            x + (size_t)j * step);
        }
        return;
    }
    for (int j = 0; j < places; j++) {
        if (words[j] != COPIED) continue;
        copied(parallel.copied == Copied::uniform ? nearest(j, places, length) : j / parallel.frames,
               x + (size_t)j * step);
    }
}

void Engine::fill(const Canvas& canvas, const std::vector<int>& only, std::vector<float>& hidden) {
    const Rounding rounding;
    const Parallel& parallel = network->parallel;
    if (!network->decoder.embedding.words) throw PassFault("the model has no decoder");
    std::vector<std::shared_ptr<const Memory>> sources(canvas.rows);
    for (int b = 0, at = 0; b < canvas.rows; at += canvas.lengths[b++]) {
        sources[b] = memory(canvas.memories[b]);
        const int places = canvas.lengths[b];
        if (places < 1 || places > network->most_target)
            throw PassFault("row " + number(b) + " has " + number(places) + " places, not 1 to " +
                            number(network->most_target));
        for (int j = 0; j < places; j++) {
            const int word = canvas.words[at + j];
            if (word >= network->words || word < COPIED || (word == COPIED && parallel.copied == Copied::none))
                throw PassFault("word " + number(word) + " of row " + number(b) + " is none of " +
                                number(network->words));
        }
        const bool in_order = parallel.copied == Copied::source || parallel.copied == Copied::memory;
        const int most = parallel.copied == Copied::fires ? sources[b]->fires : parallel.frames * sources[b]->length;
        if ((in_order || (parallel.copied == Copied::fires && !canvas.fired)) && places > most)
            throw PassFault("row " + number(b) + " has " + number(places) + " places, more than its source's " +
                            number(most));
    }
    threads.adapt();
    Lease lease(*this);
    Workspace& space = *lease.space;
    const Stack& stack = network->decoder;
    const int d = stack.embedding.features, step = step_of(d);
    hidden.resize(only.size() * (size_t)d);
    size_t read_so_far = 0;
    for (int begin = 0, at = 0; begin < canvas.rows;) {
        int end = begin, n = 0;  // rows that go together
        while (end < canvas.rows && (end == begin || n + canvas.lengths[end] <= CHUNK)) n += canvas.lengths[end++];
        const Rows rows(canvas.lengths + begin, end - begin);
        std::vector<int> positions(n);
        std::vector<std::shared_ptr<const Memory>> attended(n);
        float* x = space.x.get((size_t)n * step);
        for (int b = begin, i = 0; b < end; i += canvas.lengths[b++]) {
            const int* words = canvas.words + at + i;
            const float* fired = canvas.fired ? canvas.fired + (size_t)(at + i) * d : sources[b]->fired.data();
            copy_source(space, *sources[b], fired, words, canvas.lengths[b], x + (size_t)i * step);
            for (int j = 0; j < canvas.lengths[b]; j++) {
                positions[i + j] = j;
                attended[i + j] = sources[b];
                if (words[j] != COPIED) vector(stack.embedding, words[j], x + (size_t)(i + j) * step);
            }
        }
        place(stack.embedding, positions.data(), n, x);
        for (size_t l = 0; l < stack.layers.size(); l++) {
            const Layer& layer = stack.layers[l];
            if (layer.fed)
                fed_layer(space, layer, x, rows);
            else
                attend_rows(space, layer, x, n, rows);
            if (layer.cross_q) attend_sources(space, layer, x, n, (int)l, attended.data());
            if (!layer.fed) feed_forward(space, layer.ffn, layer.norm_first, x, n);
            if (interrupted) interrupted();
        }
        for (; read_so_far < only.size() && only[read_so_far] < at + n; read_so_far++)
            finish(x + (size_t)(only[read_so_far] - at) * step, hidden.data() + read_so_far * d);
        at += n;
        begin = end;
    }
}

void Engine::read(const Want& want, Read& found) {
    const Rounding rounding;
    Lease lease(*this);
    read(*lease.space, want, found);
}

void Engine::read_encoded(const int* which, int count, const Want& want, Read& found) {
    if (!network->ctc) throw PassFault("the model has no CTC head");
    const int d = network->features;
    size_t next = 0;
    for (int b = 0, at = 0; b < count; b++) {
        const auto source = memory(which[b]);
        for (; next < want.only.size() && want.only[next] < at + source->length; next++) {
            const float* row = source->output.data() + (size_t)(want.only[next] - at) * d;
            found.hidden.insert(found.hidden.end(), row, row + d);
        }
        at += source->length;
    }
    threads.adapt();
    read(want, found);
}

void Engine::length_logits(const int* memories, int count, float* to) {
    const Rounding rounding;
    const Linear* predictor = network->parallel.lengths;
    if (!predictor) throw PassFault("the model predicts no lengths");
    std::vector<std::shared_ptr<const Memory>> sources(count);
    for (int b = 0; b < count; b++) sources[b] = memory(memories[b]);
    Lease lease(*this);
    const int d = network->features, classes = predictor->outputs, wide = predictor->width();
    float* means = lease.space->x.get((size_t)count * d);
    float* rows = lease.space->logits.get((size_t)count * wide);
    for (int b = 0; b < count; b++) {
        float* mean = means + (size_t)b * d;
        std::fill(mean, mean + d, 0.0f);
        for (int i = 0; i < sources[b]->length; i++)
            for (int k = 0; k < d; k++) mean[k] += sources[b]->output[(size_t)i * d + k];
        for (int k = 0; k < d; k++) mean[k] /= (float)sources[b]->length;
    }
    linear(*lease.space, *predictor, means, count, d, rows, wide);
    for (int b = 0; b < count; b++)
        std::memcpy(to + (size_t)b * classes, rows + (size_t)b * wide, classes * sizeof(float));
}

void Engine::links(const float* hidden, const int* lengths, int count, float* to) {
    const Rounding rounding;
    if (!network->parallel.query) throw PassFault("the model has no links");
    for (int b = 0; b < count; b++)
        if (lengths[b] < 1 || lengths[b] > network->most_target)
            throw PassFault("graph " + number(b) + " has " + number(lengths[b]) + " vertices, not 1 to " +
                            number(network->most_target));
    Lease lease(*this);
    for (int b = 0; b < count; b++) {
        link_row(*lease.space, hidden, lengths[b], to);
        hidden += (size_t)lengths[b] * network->decoder.embedding.features;
        to += (size_t)lengths[b] * lengths[b];
        if (interrupted) interrupted();
    }
}

// Huang et al. 2022, equation 4: attention over later vertices of the allowed lengths, its heads mixed by gates. The
// query's weights hold the scale.
void Engine::link_row(Workspace& space, const float* hidden, int count, float* to) {
    const Parallel& parallel = network->parallel;
    const int d = network->decoder.embedding.features, heads = parallel.gate->outputs, f = d / heads;
    const int inputs = parallel.query->inputs, wide = parallel.query->width(), gates = parallel.gate->width();
    float* x = space.x.get((size_t)count * inputs);
    for (int i = 0; i < count; i++) {
        float* part = x + (size_t)i * inputs;
        if (parallel.by_features) {
            std::memcpy(part, hidden + (size_t)i * d, d * sizeof(float));
            part += d;
        }
        if (parallel.positions) std::memcpy(part, parallel.positions + (size_t)i * d, d * sizeof(float));
    }
    float* query = space.projected.get((size_t)count * wide);
    float* key = space.attended.get((size_t)count * wide);
    float* gate = space.gated.get((size_t)count * gates);
    linear(space, *parallel.query, x, count, inputs, query, wide);
    linear(space, *parallel.key, x, count, inputs, key, wide);
    linear(space, *parallel.gate, x, count, inputs, gate, gates);
    for (int i = 0; i < count; i++) {
        float* row = gate + (size_t)i * gates;
        const float most = *std::max_element(row, row + heads);
        float total = 0.0f;
        for (int h = 0; h < heads; h++) total += row[h] = std::exp(row[h] - most);
        for (int h = 0; h < heads; h++) row[h] /= total;
    }
    std::fill(to, to + (size_t)count * count, 0.0f);
    // A head's keys as the weights of a linear layer, whose outputs are its scores.
    Linear keys;
    keys.outputs = count;
    keys.inputs = f;
    const int across = keys.width();
    const std::vector<float> bias(across, 0.0f);
    float* weights = space.inner.get((size_t)across * f);
    float* scores = space.logits.get((size_t)count * across);
    keys.weights = weights;
    keys.bias = bias.data();
    const int parts = threads.parts(count, (double)count * count * 4 / PART);
    for (int h = 0; h < heads; h++) {
        std::fill(weights, weights + (size_t)across * f, 0.0f);
        for (int j = 0; j < count; j++)
            for (int k = 0; k < f; k++)
                weights[((size_t)(j / PANEL) * f + k) * PANEL + j % PANEL] = key[(size_t)j * wide + h * f + k];
        linear(space, keys, query + h * f, count, wide, scores, across);
        threads.share(count, parts, [&](int, int first, int last) {
            for (int i = first; i < std::min(count - 1, last); i++)
                kernels->add_softmax(scores + (size_t)i * across + i + 1,
                                     std::min(count - 1 - i, parallel.longest_link), gate[(size_t)i * gates + h],
                                     to + (size_t)i * count + i + 1);
        });
    }
    threads.share(count, parts, [&](int, int first, int last) {
        for (int i = first; i < last; i++)
            for (int j = 0; j < count; j++) {
                float& edge = to[(size_t)i * count + j];
                edge = j > i && j - i <= parallel.longest_link ? std::log(std::max(edge, FLT_MIN)) : -INFINITY;
            }
    });
}

}  // namespace nartk

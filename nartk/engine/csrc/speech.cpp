// What encoders of speech have beside a Transformer's layers: frames become positions by convolutions, neighbouring
// positions are mixed, and attention over the hundreds of positions of a source is matrix products.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine.h"

namespace nartk {

static constexpr int TILE = 48;    // queries of a head whose scores are there at once
static constexpr int IMAGES = 16;  // positions of convolved images that are there at once

int Subsampling::after(int level, int frames) const {
    const int padded = frames + (images ? 0 : 2);
    return padded < 3 ? 0 : (padded - 3) / convolutions[level].stride + 1;
}

int Subsampling::positions(int frames) const {
    if (window) return (frames + shift - 1) / shift;
    for (int level = 0; level < (int)convolutions.size(); level++) frames = after(level, frames);
    return frames;
}

int Subsampling::least() const {
    int frames = 1;
    while (positions(frames) < 1) frames++;
    return frames;
}

// What the last convolution gives for positions from first to last of so many frames: rows of [features,channels].
const float* Engine::convolved(Workspace& space, const float* frames, int count, int first, int last) {
    const Subsampling& by = network->subsampling;
    const int levels = (int)by.convolutions.size(), pad = by.images ? 0 : 1, across = by.images ? 3 : 1;
    std::vector<int> counts{count}, from(levels + 1, first), to(levels + 1, last);  // of rows, before each level
    for (int level = 0; level < levels; level++) counts.push_back(by.after(level, counts.back()));
    for (int level = levels; level--;) {
        const int stride = by.convolutions[level].stride;
        from[level] = std::max(0, stride * from[level + 1] - pad);
        to[level] = std::min(counts[level], stride * (to[level + 1] - 1) - pad + 3);
    }
    int features = by.images ? by.features : 1, channels = by.images ? 1 : by.features, step = channels;
    const float* x = frames + (size_t)from[0] * by.features;
    for (int level = 0; level < levels; level++) {
        const Linear& taps = *by.convolutions[level].taps;
        const int stride = by.convolutions[level].stride, beside = by.images ? stride : 1;
        const int left = by.images ? (features - 3) / stride + 1 : 1, n = (to[level + 1] - from[level + 1]) * left;
        const int wide = taps.width(), runs = step == channels ? 1 : across, run = across * channels / runs;
        float* y = space.channels[level % 2].get((size_t)n * wide);
        for (int begin = 0; begin < n; begin += CHUNK) {
            const int m = std::min(CHUNK, n - begin);
            float* patches = space.patches.get((size_t)CHUNK * taps.inputs);
            float* patch = patches;
            for (int i = begin; i < begin + m; i++)
                for (int row = stride * (from[level + 1] + i / left) - pad, end = row + 3; row < end; row++)
                    for (int k = 0; k < runs; k++, patch += run) {
                        const int feature = i % left * beside + k;
                        if (row < 0 || row >= counts[level])
                            std::fill(patch, patch + run, 0.0f);
                        else
                            std::memcpy(patch, x + ((size_t)(row - from[level]) * features + feature) * step,
                                        run * sizeof(float));
                    }
            linear(space, taps, patches, m, taps.inputs, y + (size_t)begin * wide, wide, {by.activation, false});
        }
        x = y;
        features = left;
        channels = taps.outputs;
        step = wide;
    }
    return x;
}

// The positions of a source of so many frames -> x.
void Engine::subsample(Workspace& space, const float* frames, int count, float* x) {
    const Subsampling& by = network->subsampling;
    if (by.window) return stack_frames(frames, count, x);
    const Linear& last = *by.convolutions.back().taps;
    const int positions = by.positions(count), step = step_of(network->features);
    const int channels = last.outputs, wide = last.width();
    const int left = by.out ? by.out->inputs / channels : 1, inputs = left * channels;
    for (int begin = 0; begin < positions; begin += CHUNK) {
        const int n = std::min(CHUNK, positions - begin);
        float* to = by.out ? space.joined.get((size_t)CHUNK * inputs) : x + (size_t)begin * step;
        const int row = by.out ? inputs : step;
        for (int i = 0; i < n; i += IMAGES) {
            const int m = std::min(IMAGES, n - i);
            const float* from = convolved(space, frames, count, begin + i, begin + i + m);
            for (int j = 0; j < m; j++) {
                for (int k = 0; k < left; k++)
                    std::memcpy(to + (size_t)(i + j) * row + k * channels, from + ((size_t)j * left + k) * wide,
                                channels * sizeof(float));
                std::fill(to + (size_t)(i + j) * row + inputs, to + (size_t)(i + j + 1) * row, 0.0f);
            }
        }
        if (by.out) linear(space, *by.out, to, n, inputs, x + (size_t)begin * step, step);
        if (interrupted) interrupted();
    }
}

// Weights [outputs,inputs] of a linear layer that are made of activations: fp32, or int16 with a scale an output.
static Linear operand(Type type, int outputs, int inputs, float* at, const float* zeros) {
    Linear made{outputs, inputs, type};
    made.weights = at;
    made.bias = zeros;
    if (type == Type::int16) made.scales = at + (size_t)made.width() * made.groups();
    return made;
}

// Floats that they take.
static size_t operand_floats(Type type, int outputs, int inputs) {
    const Linear made{outputs, inputs, type};
    return (size_t)made.width() * (made.groups() + (type == Type::int16));
}

// Writes rows [outputs,inputs] of x, times a scale, as such weights.
static void pack(const Kernels& kernels, const Linear& w, const float* x, size_t ldx, float scale) {
    float *to = (float*)w.weights, *scales = (float*)w.scales;
    const int groups = w.groups(), last = (w.outputs - 1) / PANEL * PANEL;
    std::fill(to + (size_t)last * groups, to + (size_t)w.width() * groups, 0.0f);
    if (w.type == Type::fp32) {
        for (int j = 0; j < w.outputs; j++)
            for (int k = 0; k < w.inputs; k++)
                to[((size_t)(j / PANEL) * groups + k) * PANEL + j % PANEL] = x[j * ldx + k] * scale;
        return;
    }
    std::fill(scales + last, scales + w.width(), 0.0f);
    int16_t row[MOST_INT16];
    for (int j = 0; j < w.outputs; j++) {
        kernels.to_int16(x + j * ldx, 1, w.inputs, w.inputs, row, 2 * groups, scales + j);
        scales[j] *= scale;
        float* panel = to + (size_t)(j / PANEL) * groups * PANEL + j % PANEL;
        for (int g = 0; g < groups; g++) std::memcpy(panel + (size_t)g * PANEL, row + 2 * g, sizeof(float));
    }
}

// Attention of an int8 encoder is in int16, whose sums are as exact as those of int8; fp32 where heads are too large.
static Type attention_type(const Layer& layer) {
    return layer.qkv->type == Type::int8 && layer.features <= MOST_INT16 ? Type::int16 : Type::fp32;
}

// Dai et al. 2019, https://arxiv.org/abs/1901.02860, section 3.3: sines and cosines of distances in turn, projected.
std::shared_ptr<const Distances> Engine::distances(Workspace& space, int longest) {
    const Stack& stack = network->encoder;
    if (stack.layers.empty() || !stack.layers[0].distances) return nullptr;
    {
        std::lock_guard<std::mutex> lock(mutex);
        if (projected && projected->longest >= longest) return projected;
    }
    auto made = std::make_shared<Distances>();
    made->longest = rounded(longest, CHUNK);
    const int d = network->features, count = 2 * made->longest - 1;
    std::vector<float> sinusoids((size_t)count * d);
    for (int k = 0; k < d; k += 2) {
        const double by = std::pow(10000.0, -(double)k / d);
        for (int i = 0; i < count; i++) {
            const double angle = (made->longest - 1 - i) * by;
            sinusoids[(size_t)i * d + k] = (float)std::sin(angle);
            if (k + 1 < d) sinusoids[(size_t)i * d + k + 1] = (float)std::cos(angle);
        }
    }
    for (const Layer& layer : stack.layers) {
        const Linear& w = *layer.distances;
        const int f = layer.features;
        const Type type = attention_type(layer);
        const size_t part = operand_floats(type, count, f);  // of a head
        float* rows = space.projected.get((size_t)count * w.width());
        linear(space, w, sinusoids.data(), count, d, rows, w.width());
        float* to = made->layers.emplace_back().get(layer.heads * part);
        for (int h = 0; h < layer.heads; h++)
            pack(*kernels, operand(type, count, f, to + h * part, nullptr), rows + h * f, w.width(), layer.scale);
    }
    std::lock_guard<std::mutex> lock(mutex);
    if (!projected || projected->longest < made->longest) projected = made;
    return made;
}

// Attention of all positions of a row to one another, a head after the other: its keys, and then its values, are the
// weights of linear layers. A position's sums are in the order of its row's positions, whatever else is computed.
void Engine::attend_products(Workspace& space, const Layer& layer, const Distances* distances, const float* qkv,
                             int wide, const Rows& rows, float* attended) {
    const Type type = attention_type(layer);
    const bool whole = type == Type::int16;
    const int longest = distances ? distances->longest : 0;
    const int heads = layer.heads, f = layer.features, width = layer.width(), across = rounded(f, PANEL);
    const int most = whole ? MOST_INT16 : rows.longest;  // positions whose values are summed at once
    struct Head {
        int begin, size, index;
        size_t keys, values;  // where they lie
    };
    std::vector<Head> all;
    std::vector<std::pair<int, int>> tiles;  // of which head, first query
    size_t floats = 0;
    for (int begin = 0; begin < (int)rows.size.size(); begin += rows.size[begin])
        for (int h = 0; h < heads; h++) {
            const int size = rows.size[begin];
            const size_t keys = floats, values = keys + operand_floats(type, size, f);
            floats = values;
            for (int i = 0; i < size; i += most) floats += operand_floats(type, f, std::min(most, size - i));
            for (int i = 0; i < size; i += TILE) tiles.emplace_back((int)all.size(), i);
            all.push_back({begin, size, h, keys, values});
        }
    const double work = 2.0 * rows.size.size() * rows.longest * width / PART;
    float* packed = space.packed.get(floats);
    const float* zeros = space.zeros.get(rounded(2 * std::max(longest, rows.longest) + f, PANEL));
    const int count = (int)all.size(), packers = threads.parts(count, work);
    const size_t turned = whole ? (size_t)f * MOST_INT16 : 0;
    float* columns = space.patches.get(packers * turned);
    // The values of a head, `most` positions at a time: calls each(values, first position).
    const auto each_values = [&](const Head& head, auto each) {
        float* at = packed + head.values;
        for (int i = 0; i < head.size; i += most) {
            const int n = std::min(most, head.size - i);
            each(operand(type, f, n, at, zeros), i);
            at += operand_floats(type, f, n);
        }
    };
    threads.share(count, packers, [&](int part, int first, int last) {
        for (int i = first; i < last; i++) {
            const Head& head = all[i];
            const float *key = qkv + (size_t)head.begin * wide + width + head.index * f, *value = key + width;
            pack(*kernels, operand(type, head.size, f, packed + head.keys, zeros), key, wide, layer.scale);
            each_values(head, [&](const Linear& w, int from) {
                const float* x = value + (size_t)from * wide;
                if (whole) {
                    float* column = columns + part * turned;  // [f,n]
                    for (int j = 0; j < w.inputs; j++)
                        for (int k = 0; k < f; k++) column[(size_t)k * w.inputs + j] = x[(size_t)j * wide + k];
                    return pack(*kernels, w, column, w.inputs, 1.0f);
                }
                for (int p = 0; p < across; p += PANEL)
                    for (int j = 0; j < w.inputs; j++) {
                        float* to = (float*)w.weights + ((size_t)p / PANEL * w.inputs + j) * PANEL;
                        const int kept = std::min(PANEL, f - p);
                        std::memcpy(to, x + (size_t)j * wide + p, kept * sizeof(float));
                        std::fill(to + kept, to + PANEL, 0.0f);
                    }
            });
        }
    });
    const int room = rounded(rows.longest, PANEL) + LANES;                // of a query's scores
    const int far = rounded(rows.longest + TILE, PANEL) + PANEL + LANES;  // and of those of distances
    const size_t scratch = (size_t)TILE * (room + far + across + f + (whole ? room / 2 + f / 2 : 0));
    const int parts = threads.parts((int)tiles.size(), work);
    float* scratches = space.weights.get(parts * scratch);
    threads.share((int)tiles.size(), parts, [&](int part, int first, int last) {
        float *scores = scratches + part * scratch, *by_distance = scores + (size_t)TILE * room;
        float *mixed = by_distance + (size_t)TILE * far, *query = mixed + (size_t)TILE * across;
        int16_t *whole_query = (int16_t*)(query + (size_t)TILE * f), *weights = whole_query + (size_t)TILE * f;
        float scales[TILE], ones[TILE];
        std::fill(ones, ones + TILE, 1.0f);
        // y = what layers of activations give of n queries.
        const auto product = [&](const Linear& w, const float* x, int n, int ldx, float* y, int ldy, int first,
                                 int last) {
            if (whole) kernels->to_int16(x, n, f, ldx, whole_query, f, scales);
            const void* inputs = whole ? (const void*)whole_query : x;
            kernels->linear(w, inputs, scales, n, whole ? f : ldx, y, ldy, first, last, {});
        };
        for (int t = first; t < last; t++) {
            const Head& head = all[tiles[t].first];
            const int begin = tiles[t].second, n = std::min(TILE, head.size - begin), size = head.size;
            const float* q = qkv + (size_t)(head.begin + begin) * wide + head.index * f;
            const auto moved = [&](const float* by) {  // queries plus what each head adds to them
                for (int i = 0; i < n; i++) {
                    std::memcpy(query + i * f, q + (size_t)i * wide, f * sizeof(float));
                    kernels->add(query + i * f, by + head.index * f, f);
                }
                return query;
            };
            const Linear keys = operand(type, size, f, packed + head.keys, zeros);
            if (distances) {
                product(keys, moved(layer.content), n, f, scores, room, 0, keys.panels());
                const int spread = 2 * longest - 1, from = (longest - begin - n) / PANEL;
                const int to = (longest - 1 - begin + size - 1) / PANEL + 1;
                const size_t index = &layer - network->encoder.layers.data();
                float* table =
                    (float*)distances->layers[index].floats() + head.index * operand_floats(type, spread, f);
                product(operand(type, spread, f, table, zeros), moved(layer.position), n, f, by_distance - from * PANEL,
                        far, from, to);
                for (int i = 0; i < n; i++)
                    kernels->add(scores + (size_t)i * room,
                                 by_distance + (size_t)i * far + longest - 1 - begin - i - from * PANEL, size);
            } else {
                product(keys, q, n, wide, scores, room, 0, keys.panels());
            }
            float total[TILE];
            for (int i = 0; i < n; i++) {
                float* row = scores + (size_t)i * room;
                total[i] = whole ? kernels->int16_exponentials(row, size, weights + (size_t)i * room)
                                 : kernels->exponentials(row, size);
            }
            each_values(head, [&](const Linear& values, int at) {
                const void* inputs = whole ? (const void*)(weights + at) : scores + at;
                kernels->linear(values, inputs, ones, n, room, mixed, across, 0, across / PANEL,
                                {Activation::none, at > 0});
            });
            for (int i = 0; i < n; i++) {
                const float by = 1.0f / total[i];
                float* to = attended + (size_t)(head.begin + begin + i) * width + head.index * f;
                for (int k = 0; k < f; k++) to[k] = mixed[(size_t)i * across + k] * by;
            }
        }
    });
}

// Positions y [n,step] of rows, projected and attending to one another -> to, or added to it.
void Engine::attend_positions(Workspace& space, const Layer& layer, const Distances* distances, const float* y, int step,
                              const Rows& rows, float* to, int ldt, bool residual) {
    const int n = (int)rows.size.size(), wide = layer.qkv->width() + LANES, width = layer.width();
    float* qkv = space.projected.get((size_t)n * wide);
    linear(space, *layer.qkv, y, n, step, qkv, wide);
    float* attended = space.attended.get((size_t)n * width);
    attend_products(space, layer, distances, qkv, wide, rows, attended);
    linear(space, *layer.out, attended, n, width, to, ldt, {Activation::none, residual});
    if (!layer.memory.taps) return;
    // Of a head's features those that are filled up are left out.
    const int d = layer.memory.channels, own = d / layer.heads, row = step_of(d);
    float* values = space.merged.get((size_t)n * row);
    for (int i = 0; i < n; i++) {
        float* to_row = values + (size_t)i * row;
        for (int h = 0; h < layer.heads; h++)
            std::memcpy(to_row + h * own, qkv + (size_t)i * wide + 2 * width + h * layer.features, own * sizeof(float));
        std::fill(to_row + d, to_row + row, 0.0f);
    }
    add_memory(space, layer.memory, values, rows, to);
}

// x += y and a convolution of it; all rows [n,step], in y zeros behind the features.
void Engine::add_memory(Workspace& space, const Depthwise& memory, const float* y, const Rows& rows, float* x) {
    const int n = (int)rows.size.size(), d = memory.channels, step = step_of(d);
    float* mixed = space.gated.get((size_t)n * step);
    convolve(memory, y, step, rows, mixed, step);
    for (int i = 0; i < n; i++) {
        kernels->add(mixed + (size_t)i * step, y + (size_t)i * step, d);
        kernels->add(x + (size_t)i * step, mixed + (size_t)i * step, d);
    }
}

// Frames side by side -> x, of rows as wide as the first layer reads them.
void Engine::stack_frames(const float* frames, int count, float* x) {
    const Subsampling& by = network->subsampling;
    const int width = by.window * by.features, step = step_of(width), positions = by.positions(count);
    for (int i = 0; i < positions; i++, x += step) {
        for (int j = 0; j < by.window; j++) {
            const int at = std::clamp(i * by.shift + j - (by.window - 1) / 2, 0, count - 1);
            std::memcpy(x + j * by.features, frames + (size_t)at * by.features, by.features * sizeof(float));
        }
        for (int k = 0; k < width; k++) x[k] = (x[k] + by.offset[k]) * by.factor[k] * by.scale;
        std::fill(x + width, x + step, 0.0f);
    }
}

// The first layer of SAN-M, which reads other features than it gives, and adds nothing of them to its output.
void Engine::enter_layer(Workspace& space, const Layer& layer, const float* entered, const Rows& rows, float* x) {
    const int n = (int)rows.size.size(), step = step_of(network->features);
    const int wide = step_of(layer.self_norm.features);
    float* y = space.normed.get((size_t)n * wide);
    normed(layer.self_norm, entered, n, y);
    attend_positions(space, layer, nullptr, y, wide, rows, x, step, false);
    feed_forward(space, layer.ffn, layer.norm_first, x, n);
}

// A layer of SAN-M's decoder up to where it reads the source: its feed-forward network, and what that gives mixed
// with its neighbours. Without memory, what the network gives is all.
void Engine::fed_layer(Workspace& space, const Layer& layer, float* x, const Rows& rows) {
    const int n = (int)rows.size.size(), step = step_of(layer.ffn.norm.features);
    float* fed = space.merged.get((size_t)n * step);
    for (int begin = 0; begin < n; begin += CHUNK) {
        const int m = std::min(CHUNK, n - begin);
        float* y = space.normed.get((size_t)m * step);
        normed(layer.ffn.norm, x + (size_t)begin * step, m, y);
        feed(space, layer.ffn, y, m, fed + (size_t)begin * step, false);
    }
    if (!layer.memory.taps) {
        std::memcpy(x, fed, (size_t)n * step * sizeof(float));
        return;
    }
    normed(layer.self_norm, fed, n, fed);
    add_memory(space, layer.memory, fed, rows, x);
}

void Engine::convolve(const Depthwise& by, const float* x, int ldx, const Rows& rows, float* y, int ldy) {
    const int n = (int)rows.size.size(), before = (by.size - 1) / 2, across = rounded(by.channels, LANES);
    threads.share(n, threads.parts(n, (double)n * by.size * across / PART), [&](int, int first, int last) {
        for (int i = first; i < last; i++) {
            const int at = i - rows.begin[i];
            const int from = std::max(0, before - at), to = std::min(by.size, rows.size[i] - at + before);
            kernels->depthwise(x + (ptrdiff_t)(i - before + from) * ldx, ldx, to - from,
                               by.taps + (size_t)from * across, by.bias, by.channels, y + (size_t)i * ldy);
        }
    });
}

// y, what its norm gives, mixed -> to.
void Engine::gate(Workspace& space, const Gating& gating, const float* y, const Rows& rows, float* to, int ldt,
                  bool residual) {
    const int n = (int)rows.size.size(), c = gating.depthwise.channels, step = step_of(network->features);
    const int wide = gating.up->width() + LANES, narrow = rounded(c, LANES) + LANES;
    float* both = space.inner.get((size_t)n * wide);
    float* mixed = space.gated.get((size_t)n * narrow);
    linear(space, *gating.up, y, n, step, both, wide, {gating.of_gate ? Activation::gelu : Activation::none, false});
    if (gating.of_gate) {  // Kim et al. 2022, https://arxiv.org/abs/2210.00077, section 3.1
        normed(gating.inner, both + c, n, both + c, wide);
        convolve(gating.depthwise, both + c, wide, rows, mixed, narrow);
        for (int i = 0; i < n; i++)
            kernels->multiply(mixed + (size_t)i * narrow, both + (size_t)i * wide, c, Activation::none);
    } else {  // Gulati et al. 2020, https://arxiv.org/abs/2005.08100, section 2.2
        for (int i = 0; i < n; i++)
            kernels->multiply(both + (size_t)i * wide, both + (size_t)i * wide + c, c, Activation::sigmoid);
        convolve(gating.depthwise, both, wide, rows, mixed, narrow);
        if (gating.inner.gain) normed(gating.inner, mixed, n, mixed, narrow);
        for (int i = 0; i < n; i++)  // SiLU
            kernels->multiply(mixed + (size_t)i * narrow, mixed + (size_t)i * narrow, c, Activation::sigmoid);
    }
    linear(space, *gating.down, mixed, n, narrow, to, ldt, {Activation::none, residual});
}

// prompts: what each position reads, if anything.
void Engine::speech_layer(Workspace& space, const Layer& layer, const Distances* distances,
                          const std::vector<std::shared_ptr<const Memory>>& prompts, float* x, const Rows& rows) {
    const int n = (int)rows.size.size(), step = step_of(network->features), d = network->features;
    if (layer.ffn_before.up) feed_forward(space, layer.ffn_before, layer.norm_first, x, n);
    const auto attend = [&](const float* y, float* to, int ldt, bool residual) {
        attend_positions(space, layer, distances, y, step, rows, to, ldt, residual);
    };
    if (layer.merge_out) {  // Kim et al. 2022, section 3.2
        const int wide = 2 * step + LANES;
        float* both = space.joined.get((size_t)n * wide);
        float* merged = space.merged.get((size_t)n * wide);
        float* y = space.normed.get((size_t)n * step);
        normed(layer.self_norm, x, n, y);
        attend(y, both, wide, false);
        normed(layer.gating.norm, x, n, y);
        gate(space, layer.gating, y, rows, both + d, wide, false);  // behind the d features of attention
        convolve(layer.merge, both, wide, rows, merged, wide);
        for (int i = 0; i < n; i++) kernels->add(merged + (size_t)i * wide, both + (size_t)i * wide, 2 * d);
        linear(space, *layer.merge_out, merged, n, wide, x, step, {Activation::none, true});
    } else {
        sublayer(space, layer.self_norm, layer.norm_first, x, n, [&](const float* y) { attend(y, x, step, true); });
        if (layer.gating.up)
            sublayer(space, layer.gating.norm, layer.norm_first, x, n,
                     [&](const float* y) { gate(space, layer.gating, y, rows, x, step, true); });
    }
    feed_forward(space, layer.ffn, layer.norm_first, x, n);
    if (layer.cross_q)
        attend_sources(space, layer, x, n, (int)(&layer - network->encoder.layers.data()), prompts.data());
    if (layer.final_norm.gain) normed(layer.final_norm, x, n, x);
    if (layer.conditioned) condition(space, x, n);
}

// Nozaki and Komatsu 2021, https://arxiv.org/abs/2104.02724: adds a projection of the words' probabilities.
void Engine::condition(Workspace& space, float* x, int n) {
    const int step = step_of(network->features), words = network->ctc->outputs, wide = network->ctc->width();
    for (int begin = 0; begin < n; begin += CHUNK) {
        const int m = std::min(CHUNK, n - begin);
        float* part = x + (size_t)begin * step;
        const float* y = part;
        float* rows = space.logits.get((size_t)m * wide);
        if (network->condition_normed) {
            float* to = space.normed.get((size_t)m * step);
            normed(network->encoder.norm, part, m, to);
            y = to;
        }
        linear(space, *network->ctc, y, m, step, rows, wide);
        threads.share(m, threads.parts(m, (double)m * words * 8 / PART), [&](int, int first, int last) {
            for (int i = first; i < last; i++) {
                float* row = rows + (size_t)i * wide;
                const float by = 1.0f / kernels->exponentials(row, words);
                for (int k = 0; k < words; k++) row[k] *= by;
            }
        });
        linear(space, *network->condition, rows, m, wide, part, step, {Activation::none, true});
    }
}

// Dong and Xu 2020, https://arxiv.org/abs/1905.11235, as `nartk.models.cif` has it: the weights of positions are a
// line on which each token is one long. The running sum is fp64, so that rounding neither adds a token nor loses one.
void Engine::fire(Workspace& space, Memory& memory) {
    const Parallel& parallel = network->parallel;
    const int d = network->features, n = memory.length, one = parallel.fire_out->width();
    const int wide = parallel.fire_taps ? parallel.fire_taps->width() : step_of(network->features);
    float* inner = space.inner.get((size_t)n * wide);
    float* weights = space.logits.get((size_t)n * one);
    if (parallel.fire_taps) {
        convolve(space, *parallel.fire_taps, d, memory.output.data(), n, d, inner, wide, {Activation::relu, false});
    } else {
        float* x = space.patches.get((size_t)n * wide);  // rows as wide as kernels read them
        for (int i = 0; i < n; i++) {
            std::memcpy(x + (size_t)i * wide, memory.output.data() + (size_t)i * d, d * sizeof(float));
            std::fill(x + (size_t)i * wide + d, x + (size_t)(i + 1) * wide, 0.0f);
        }
        convolve(parallel.fire_depthwise, x, wide, Rows(&n, 1), inner, wide);
        for (int i = 0; i < n; i++) {
            float* row = inner + (size_t)i * wide;
            kernels->add(row, x + (size_t)i * wide, d);
            for (int k = 0; k < d; k++) row[k] = std::max(row[k], 0.0f);
        }
    }
    linear(space, *parallel.fire_out, inner, n, wide, weights, one);
    double total = 0.0;
    for (int i = 0; i < n; i++) {
        memory.fire_weights.push_back((float)(1.0 / (1.0 + std::exp(-(double)weights[(size_t)i * one]))));
        total += memory.fire_weights.back();
    }
    constexpr double ROUNDING = 1e-4;  // a sum that misses a whole number by no more has reached it
    memory.fires = std::clamp((int)std::floor(total + parallel.tail + ROUNDING), parallel.least, network->most_target);
    memory.fired.assign((size_t)memory.fires * d, 0.0f);
    double begin = 0.0;
    for (int i = 0; i < n; i++) {
        const double end = begin + memory.fire_weights[i];
        for (int token = (int)begin; token < std::min(memory.fires, (int)end + 1); token++) {
            const float share = (float)std::max(0.0, std::min(end, token + 1.0) - std::max(begin, (double)token));
            for (int k = 0; k < d; k++) memory.fired[(size_t)token * d + k] += share * memory.output[(size_t)i * d + k];
        }
        begin = end;
    }
}

}  // namespace nartk

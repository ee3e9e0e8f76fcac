// Spectrograms of phonemes. FastSpeech 2's are two stacks of layers whose feed-forward networks are convolutions, and
// between them the predictors of durations, pitch and energy. A sentence is computed by itself, so that what it
// becomes depends on it alone. Transformer TTS's come step by step from the decoder.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine.h"

namespace nartk {

// A convolution of n rows x [n,ldx] of so many channels: rows of zeros are before and behind them. Its windows
// overlap, each beginning a row after the one before, so that they are the rows of a product as they lie.
void Engine::convolve(Workspace& space, const Linear& taps, int channels, const float* x, int n, int ldx, float* y,
                      int ldy, Epilogue epilogue) {
    const int size = taps.inputs / channels, before = (size - 1) / 2;
    float* rows = space.patches.get((size_t)(n + size - 1) * channels);
    std::fill(rows, rows + (size_t)before * channels, 0.0f);
    for (int i = 0; i < n; i++)
        std::memcpy(rows + (size_t)(before + i) * channels, x + (size_t)i * ldx, channels * sizeof(float));
    std::fill(rows + (size_t)(before + n) * channels, rows + (size_t)(n + size - 1) * channels, 0.0f);
    for (int begin = 0; begin < n; begin += CHUNK)
        linear(space, taps, rows + (size_t)begin * channels, std::min(CHUNK, n - begin), channels,
               y + (size_t)begin * ldy, ldy, epilogue);
}

void Engine::acoustic_layer(Workspace& space, const Layer& layer, float* x, int n) {
    const int d = network->acoustic.features, step = step_of(d), inner = layer.ffn.up->width() + LANES;
    attend_positions(space, layer, nullptr, x, step, Rows(&n, 1), x, step, true);
    normed(layer.self_norm, x, n, x);
    float* between = space.inner.get((size_t)n * inner);
    convolve(space, *layer.ffn.up, d, x, n, step, between, inner, {layer.ffn.activation, false});
    convolve(space, *layer.ffn.down, layer.ffn.up->outputs, between, n, inner, x, step, {Activation::none, true});
    normed(layer.ffn.norm, x, n, x);
    if (interrupted) interrupted();
}

// A number for each of n phonemes.
std::vector<float> Engine::predict(Workspace& space, const Predictor& by, const float* x, int n) {
    const float* from = x;
    int channels = network->acoustic.features, step = step_of(channels);
    for (size_t i = 0; i < by.convolutions.size(); i++) {
        const Linear& taps = *by.convolutions[i];
        const int wide = taps.width();
        float* to = space.channels[i % 2].get((size_t)n * wide);
        convolve(space, taps, channels, from, n, step, to, wide, {Activation::relu, false});
        normed(by.norms[i], to, n, to, wide);
        from = to;
        channels = taps.outputs;
        step = wide;
    }
    const int one = by.out->width();
    float* rows = space.logits.get((size_t)n * one);
    linear(space, *by.out, from, n, step, rows, one);
    std::vector<float> found(n);
    for (int i = 0; i < n; i++) found[i] = rows[(size_t)i * one];
    return found;
}

// All sentences that have not ended take a step together, each a token of a pass of the decoder.
void Engine::speak_steps(const float* features, const std::vector<int>& lengths, Spoken& spoken) {
    const Steps& steps = network->steps;
    const Stack& stack = network->decoder;
    const int count = (int)lengths.size(), size = steps.size(), step = step_of(stack.embedding.features);
    Made encoded;
    {
        Lease lease(*this);
        encoded = read_vectors(*lease.space, features, lengths);
    }
    std::vector<std::vector<float>> mel(count, std::vector<float>(size, 0.0f));  // behind the zeros that come first
    std::vector<int> live(count);
    for (int b = 0; b < count; b++) live[b] = b;
    const std::vector<int> contexts = cells.open(count);
    try {
        for (int at = 0; !live.empty() && at * (size / steps.bins) < steps.most; at++) {
            const int n = (int)live.size();
            const std::vector<int> parents(n, -1), positions(n, at);
            std::vector<int> own(n), every(n), left;
            Sources sources(n);
            for (int i = 0; i < n; i++) {
                own[i] = contexts[live[i]];
                every[i] = i;
                sources[i] = encoded[live[i]];
            }
            const auto enter = [&](Workspace& space, int first, int m, float* x) {
                float* rows = space.joined.get((size_t)m * size);
                for (int i = 0; i < m; i++)
                    std::copy_n(mel[live[first + i]].end() - size, size, rows + (size_t)i * size);
                const float* from = rows;
                int wide = size;
                for (size_t l = 0; l + 1 < steps.prenet.size(); l++) {
                    const int inner = steps.prenet[l]->width();
                    float* to = space.channels[l % 2].get((size_t)m * inner);
                    linear(space, *steps.prenet[l], from, m, wide, to, inner, {Activation::relu, false});
                    from = to;
                    wide = inner;
                }
                linear(space, *steps.prenet.back(), from, m, wide, x, step);
                place(stack.embedding, positions.data() + first, m, x);
            };
            const auto leave = [&](Workspace& space, int first, int m, float* x) {
                normed(stack.norm, x, m, x);
                const int wide = steps.out->width();
                float* rows = space.logits.get((size_t)m * wide);
                linear(space, *steps.out, x, m, step, rows, wide);
                for (int i = 0; i < m; i++, rows += wide) {
                    auto& said = mel[live[first + i]];
                    said.insert(said.end(), rows, rows + size);
                    if (!(rows[size] > 0.0f)) left.push_back(live[first + i]);
                }
            };
            const auto pass = decode(sources, own.data(), parents.data(), enter, leave);
            cells.end(*pass, every.data(), n);
            live = left;
        }
    } catch (...) {
        cells.close(contexts.data(), count);
        throw;
    }
    cells.close(contexts.data(), count);
    for (const auto& said : mel) {
        const int frames = std::min(steps.most, (int)(said.size() - size) / steps.bins);
        for (int i = 0; i < frames * steps.bins; i++)
            spoken.mel.push_back(said[size + i] * steps.deviation[i % steps.bins] + steps.mean[i % steps.bins]);
        spoken.frames.push_back(frames);
    }
}

void Engine::speak(const float* features, const int* lengths, int count, Spoken& spoken) {
    const Rounding rounding;
    const Acoustic& acoustic = network->acoustic;
    const int most = network->steps.out ? network->most_source : acoustic.positions;
    if (!network->spoken_bins()) throw PassFault("the model does not speak");
    for (int b = 0; b < count; b++)
        if (lengths[b] < 1 || lengths[b] > most)
            throw PassFault("sentence " + number(b) + " has " + number(lengths[b]) + " phonemes, not 1 to " +
                            number(most));
    threads.adapt();
    if (network->steps.out) return speak_steps(features, {lengths, lengths + count}, spoken);
    Lease lease(*this);
    Workspace& space = *lease.space;
    const int d = acoustic.features, step = step_of(d), bins = acoustic.out->outputs;
    const auto place = [&](float* x, int n, float factor) {
        for (int i = 0; i < n; i++)
            for (int k = 0; k < d; k++) x[(size_t)i * step + k] += factor * acoustic.table[(size_t)i * d + k];
    };
    // Adds the vector of each phoneme's bin: of bounds the first that is no lower.
    const auto embed = [&](float* x, const std::vector<float>& values, const float* bounds, const float* vectors) {
        for (size_t i = 0; i < values.size(); i++) {
            const auto bin = std::lower_bound(bounds, bounds + acoustic.bounds, values[i]) - bounds;
            kernels->add(x + i * step, vectors + bin * d, d);
        }
    };
    for (int b = 0; b < count; features += (size_t)lengths[b++] * acoustic.inputs()) {
        const int n = lengths[b];
        float* x = space.x.get((size_t)n * step);
        if (acoustic.up) {
            const int wide = acoustic.up->width();
            float* inner = space.inner.get((size_t)n * wide);
            linear(space, *acoustic.up, features, n, acoustic.inputs(), inner, wide, {Activation::relu, false});
            linear(space, *acoustic.down, inner, n, wide, x, step);
        }
        for (int i = 0; i < n && !acoustic.up; i++) {
            std::memcpy(x + (size_t)i * step, features + (size_t)i * d, d * sizeof(float));
            std::fill(x + (size_t)i * step + d, x + (size_t)(i + 1) * step, 0.0f);
        }
        place(x, n, acoustic.encoder_factor);
        for (const Layer& layer : acoustic.encoder) acoustic_layer(space, layer, x, n);
        const std::vector<float> durations = predict(space, acoustic.duration, x, n);
        const std::vector<float> pitch = predict(space, acoustic.pitch, x, n);
        embed(x, pitch, acoustic.pitch_bounds, acoustic.pitch_vectors);
        const std::vector<float> energy = predict(space, acoustic.energy, x, n);
        embed(x, energy, acoustic.energy_bounds, acoustic.energy_vectors);
        int t = 0;
        std::vector<int> each(n, 0);  // the last is of eos, which is not heard
        for (int i = 0; i + 1 < n; i++) {
            const float predicted = std::nearbyint(std::exp(durations[i]) - 1.0f);
            each[i] = predicted >= 1.0f ? (int)std::min(predicted, (float)acoustic.most) : 1;
            t += each[i] = std::min(each[i], acoustic.most - t);  // a spectrogram ends there
        }
        float* y = space.joined.get((size_t)std::max(1, t) * step);
        for (int i = 0, at = 0; i < n; i++)
            for (int k = 0; k < each[i]; k++, at++)
                std::memcpy(y + (size_t)at * step, x + (size_t)i * step, step * sizeof(float));
        place(y, t, acoustic.decoder_factor);
        if (t)
            for (const Layer& layer : acoustic.decoder) acoustic_layer(space, layer, y, t);
        const int wide = acoustic.out->width();
        float* mel = space.gated.get((size_t)std::max(1, t) * wide);
        if (t) linear(space, *acoustic.out, y, t, step, mel, wide);
        for (int i = 0; i < t; i++)
            for (int k = 0; k < bins; k++)
                spoken.mel.push_back(mel[(size_t)i * wide + k] * acoustic.deviation[k] + acoustic.mean[k]);
        spoken.frames.push_back(t);
        spoken.durations.insert(spoken.durations.end(), each.begin(), each.end());
        spoken.log_durations.insert(spoken.log_durations.end(), durations.begin(), durations.end());
        spoken.pitch.insert(spoken.pitch.end(), pitch.begin(), pitch.end());
        spoken.energy.insert(spoken.energy.end(), energy.begin(), energy.end());
    }
}

}  // namespace nartk

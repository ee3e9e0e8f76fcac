#include "weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace nartk {

namespace {

// Without the bits that fp16 has no place for.
uint16_t fp16_of(float x) { return (uint16_t)(bits_of(x) >> 16 & 0x8000 | bits_of(std::fabs(x) * 0x1p-112f) >> 13); }

// Whether all are finite fp16 numbers.
bool are_fp16(const float* x, size_t count) {
    bool all = true;
    for (size_t i = 0; i < count; i++)
        all &= std::fabs(x[i]) <= LARGEST_FP16 && bits_of(from_fp16(fp16_of(x[i]))) == bits_of(x[i]);
    return all;
}

// The nearest whole number, of two the even one: as std::nearbyint, for |x| below 2^22, and without a call.
float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }

// Writes weights [outputs,inputs] in the order of Linear, each converted with the number of its output.
template <int GROUP, class T, class Convert>
void interleave(const Linear& linear, const float* weights, T* to, Convert convert) {
    constexpr int LINE = 16;  // inputs: rows may lie a power of two apart, so that the cache holds a line of each
    const int outputs = linear.outputs, inputs = linear.inputs;
    for (int begin = 0; begin < outputs; begin += PANEL) {
        T* panel = to + (size_t)begin * linear.groups() * GROUP;
        for (int first = 0; first < inputs; first += LINE)
            for (int n = begin; n < std::min(begin + PANEL, outputs); n++)
                for (int k = first; k < std::min(first + LINE, inputs); k++)
                    panel[((size_t)(k / GROUP) * PANEL + n - begin) * GROUP + k % GROUP] =
                        convert(weights[(size_t)n * inputs + k], n);
    }
}

}  // namespace

Packed::Packed(const float* weights, const float* bias, int outputs, int inputs, Type type, const float* scales)
    : linear{outputs, inputs, type} {
    linear.halves = type == Type::fp32;
    for (int n = 0; linear.halves && n < outputs; n++) linear.halves = are_fp16(weights + (size_t)n * inputs, inputs);
    own_weights.reset(aligned(linear.bytes()));
    const size_t filled = inputs % linear.group() ? 0 : linear.bytes() / linear.panels() * (outputs / PANEL);
    std::memset(static_cast<char*>(own_weights.get()) + filled, 0, linear.bytes() - filled);
    linear.weights = own_weights.get();
    if (linear.halves)
        interleave<1>(linear, weights, static_cast<uint16_t*>(own_weights.get()),
                      [](float x, int) { return fp16_of(x); });
    else if (type == Type::fp32)
        interleave<1>(linear, weights, static_cast<float*>(own_weights.get()), [](float x, int) { return x; });
    if (type == Type::bf16)
        interleave<2>(linear, weights, static_cast<uint16_t*>(own_weights.get()),
                      [](float x, int) { return bf16_of(x); });
    if (type == Type::int8) {
        own_scales.resize(linear.width());
        std::vector<float> by(outputs);
        for (int n = 0; n < outputs; n++) {
            float most = 0.0f, check = 0.0f;
            for (int k = 0; k < inputs; k++) {
                const float x = weights[(size_t)n * inputs + k];
                most = std::max(most, std::fabs(x));
                check += x * 0.0f;  // NaN if any is NaN or infinite: the scale says so
            }
            by[n] = most >= LEAST_INT8 && !std::isnan(check) ? 127.0f / most : 0.0f;
            own_scales[n] = std::isnan(check) ? check : by[n] > 0.0f ? most / 127.0f : 0.0f;
            if (scales && scales[n] >= LEAST_INT8) {
                by[n] = 1.0f / scales[n];
                own_scales[n] = std::isnan(check) ? check : scales[n];
            }
        }
        interleave<4>(linear, weights, static_cast<int8_t*>(own_weights.get()),
                      [&](float x, int n) { return by[n] > 0.0f ? (int8_t)std::clamp(nearest(x * by[n]), -127.0f, 127.0f) : (int8_t)0; });
    }
    finish(bias);
}

Packed::Packed(const void* weights, const float* bias, const float* scales, int outputs, int inputs, Type type)
    : linear{outputs, inputs, type} {
    linear.weights = weights;
    if (type == Type::int8) own_scales.assign(scales, scales + outputs);
    finish(bias);
}

Packed::Packed(const Linear& from, const int* which, int count) : linear(from) {
    linear.outputs = count;
    own_weights.reset(aligned(std::max<size_t>(linear.bytes(), 64)));
    linear.weights = own_weights.get();
    const size_t size = from.halves ? 2 : 4;  // bytes of an output's inputs that lie beside each other
    const int groups = from.groups();
    std::memset(own_weights.get(), 0, linear.bytes());
    own_bias.resize(linear.width());
    if (from.scales) own_scales.resize(linear.width());
    if (from.sums) own_sums.resize(linear.width());
    const auto place = [&](int output) { return ((size_t)(output / PANEL) * groups * PANEL + output % PANEL) * size; };
    for (int n = 0; n < count; n++) {
        const char* read = static_cast<const char*>(from.weights) + place(which[n]);
        char* to = static_cast<char*>(own_weights.get()) + place(n);
        for (int g = 0; g < groups; g++, read += PANEL * size, to += PANEL * size) std::memcpy(to, read, size);
        if (from.bias) own_bias[n] = from.bias[which[n]];
        if (from.scales) own_scales[n] = from.scales[which[n]];
        if (from.sums) own_sums[n] = from.sums[which[n]];
    }
    linear.bias = own_bias.data();
    linear.scales = from.scales ? own_scales.data() : nullptr;
    linear.sums = from.sums ? own_sums.data() : nullptr;
}

void Packed::finish(const float* bias) {
    if (bias) own_bias.assign(bias, bias + linear.outputs);
    own_bias.resize(linear.width());
    linear.bias = own_bias.data();
    if (linear.type != Type::int8) return;
    own_scales.resize(linear.width());
    linear.scales = own_scales.data();
    own_sums.resize(linear.width());
    const int8_t* weights = static_cast<const int8_t*>(linear.weights);
    for (int p = 0; p < linear.panels(); p++)
        for (int g = 0; g < linear.groups(); g++)
            for (int n = 0; n < PANEL; n++)
                for (int k = 0; k < 4; k++) own_sums[p * PANEL + n] += *weights++;
    linear.sums = own_sums.data();
}

}  // namespace nartk

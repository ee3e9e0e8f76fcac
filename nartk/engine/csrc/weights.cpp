#include "weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "cells.h"

namespace nartk {

namespace {

template <class T>
T* zeros(size_t count) {
    T* made = static_cast<T*>(aligned(count * sizeof(T)));
    std::memset(made, 0, count * sizeof(T));
    return made;
}

uint16_t bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (std::isnan(x)) return (uint16_t)(bits >> 16 | 64);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
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

Packed::Packed(const float* weights, const float* bias, int outputs, int inputs, Type type) {
    linear.outputs = outputs;
    linear.inputs = inputs;
    linear.type = type;
    own_weights = aligned(linear.bytes());
    const size_t filled = inputs % linear.group() ? 0 : linear.bytes() / linear.panels() * (outputs / PANEL);
    std::memset(static_cast<char*>(own_weights) + filled, 0, linear.bytes() - filled);
    linear.weights = own_weights;
    if (type == Type::fp32)
        interleave<1>(linear, weights, static_cast<float*>(own_weights), [](float x, int) { return x; });
    if (type == Type::bf16)
        interleave<2>(linear, weights, static_cast<uint16_t*>(own_weights), [](float x, int) { return bf16(x); });
    if (type == Type::int8) {
        linear.scales = own_scales = zeros<float>(linear.width());
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
        }
        interleave<4>(linear, weights, static_cast<int8_t*>(own_weights),
                      [&](float x, int n) { return by[n] > 0.0f ? (int8_t)nearest(x * by[n]) : (int8_t)0; });
    }
    take_bias(bias);
    if (type == Type::int8) count_sums();
}

Packed::Packed(const void* weights, const float* bias, const float* scales, int outputs, int inputs, Type type) {
    linear.outputs = outputs;
    linear.inputs = inputs;
    linear.type = type;
    linear.weights = weights;
    if (type == Type::int8) {
        own_scales = zeros<float>(linear.width());
        std::memcpy(own_scales, scales, outputs * sizeof(float));
        linear.scales = own_scales;
    }
    take_bias(bias);
    if (type == Type::int8) count_sums();
}

void Packed::take_bias(const float* bias) {
    own_bias = zeros<float>(linear.width());
    if (bias) std::memcpy(own_bias, bias, linear.outputs * sizeof(float));
    linear.bias = own_bias;
}

void Packed::count_sums() {
    own_sums = zeros<int32_t>(linear.width());
    const int8_t* weights = static_cast<const int8_t*>(linear.weights);
    for (int p = 0; p < linear.panels(); p++)
        for (int g = 0; g < linear.groups(); g++)
            for (int n = 0; n < PANEL; n++)
                for (int k = 0; k < 4; k++) own_sums[p * PANEL + n] += 128 * *weights++;
    linear.sums = own_sums;
}

Packed::~Packed() {
    for (void* part : {own_weights, (void*)own_bias, (void*)own_scales, (void*)own_sums})
        if (part) release(part);
}

}  // namespace nartk

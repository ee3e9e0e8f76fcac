#include "weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

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

}  // namespace

Packed::Packed(const float* weights, const float* bias, int outputs, int inputs, Type type) {
    linear.outputs = outputs;
    linear.inputs = inputs;
    linear.type = type;
    const int group = linear.group();
    own_weights = aligned(linear.bytes());
    std::memset(own_weights, 0, linear.bytes());
    linear.weights = own_weights;
    if (type == Type::int8) linear.scales = own_scales = zeros<float>(linear.width());
    for (int n = 0; n < outputs; n++) {
        const float* row = weights + (size_t)n * inputs;
        const size_t base = ((size_t)(n / PANEL) * linear.groups() * PANEL + n % PANEL) * group;
        float by = 0.0f;
        if (type == Type::int8) {
            float most = 0.0f, check = 0.0f;
            for (int k = 0; k < inputs; k++) {
                most = std::max(most, std::fabs(row[k]));
                check += row[k] * 0.0f;  // NaN if any is NaN or infinite: the scale says so
            }
            by = most >= LEAST_INT8 && !std::isnan(check) ? 127.0f / most : 0.0f;
            own_scales[n] = std::isnan(check) ? check : by > 0.0f ? most / 127.0f : 0.0f;
        }
        for (int k = 0; k < inputs; k++) {
            const size_t at = base + (size_t)(k / group) * PANEL * group + k % group;
            if (type == Type::fp32) static_cast<float*>(own_weights)[at] = row[k];
            if (type == Type::bf16) static_cast<uint16_t*>(own_weights)[at] = bf16(row[k]);
            if (type == Type::int8)
                static_cast<int8_t*>(own_weights)[at] = by > 0.0f ? (int8_t)std::nearbyint(row[k] * by) : 0;
        }
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

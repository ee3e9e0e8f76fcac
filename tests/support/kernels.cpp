// Single kernels of the engine for ctypes, whose arguments tests/support/kernels.py checks.
#include <algorithm>
#include <vector>

#include "threads.h"
#include "weights.h"

using namespace nartk;

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT bool multiplies_bf16(const char* isa) { return kernels_for(isa)->bf16; }

// y [n,outputs] of x [n,inputs] and packed weights; halves: fp32 weights that lie as fp16; residual: y is added.
EXPORT void apply(const char* isa, int type, bool halves, const void* weights, const float* bias,
                  const float* of_outputs, int outputs, int inputs, const float* x, int n, int activation, bool residual,
                  float* y) {
    const Kernels& kernels = *kernels_for(isa);
    const Rounding rounding;
    Packed packed(weights, bias, of_outputs, outputs, inputs, (Type)type);
    Linear& w = packed.linear;
    w.halves = halves;
    const int stride = w.groups() * w.group(), wide = w.width();
    std::vector<uint8_t> quantised((size_t)n * stride * 2 + 64);
    std::vector<Grid> grids(n + 1);
    std::vector<float> rows((size_t)n * wide + LANES);
    for (int i = 0; residual && i < n; i++) std::copy_n(y + (size_t)i * outputs, outputs, rows.data() + (size_t)i * wide);
    const void* read = x;
    if (w.type == Type::bf16) kernels.to_bf16(x, n, inputs, inputs, (uint16_t*)quantised.data(), stride);
    if (w.type == Type::int8) kernels.to_int8(x, n, inputs, inputs, quantised.data(), stride, grids.data());
    if (w.type != Type::fp32) read = quantised.data();
    kernels.linear(w, read, grids.data(), n, stride, rows.data(), wide, 0, w.panels(),
                   {(Activation)activation, residual});
    for (int i = 0; i < n; i++) std::copy_n(rows.data() + (size_t)i * wide, outputs, y + (size_t)i * outputs);
}

// y [n,m] of x [n,k] and weights [m,k], which become integers of 12 bits.
EXPORT void apply_int16(const char* isa, const float* weights, int m, int k, const float* x, int n, float* y) {
    const Kernels& kernels = *kernels_for(isa);
    const Rounding rounding;
    Linear w{m, k, Type::int16};
    const int stride = 2 * w.groups(), wide = w.width();
    std::vector<int16_t> rows((size_t)(n + m) * stride), panels((size_t)wide * stride);
    std::vector<float> scales(n + wide), zeros(wide), made((size_t)n * wide + LANES);
    kernels.to_int16(x, n, k, k, rows.data(), stride, scales.data());
    int16_t* own = rows.data() + (size_t)n * stride;
    kernels.to_int16(weights, m, k, k, own, stride, scales.data() + n);
    for (int j = 0; j < m; j++)
        for (int i = 0; i < stride; i++)
            panels[(((size_t)(j / PANEL) * w.groups() + i / 2) * PANEL + j % PANEL) * 2 + i % 2] = own[j * stride + i];
    w.weights = panels.data();
    w.bias = zeros.data();
    w.scales = scales.data() + n;
    kernels.linear(w, rows.data(), scales.data(), n, stride, made.data(), wide, 0, w.panels(), {});
    for (int i = 0; i < n; i++) std::copy_n(made.data() + (size_t)i * wide, m, y + (size_t)i * m);
}

// Writes n integers, filled up to a multiple of 16, and returns their sum.
EXPORT float int16_exponentials(const char* isa, const float* scores, int n, int16_t* to) {
    const Rounding rounding;
    return kernels_for(isa)->int16_exponentials(scores, n, to);
}

// y [d] of one query [d] over keys and values [n,d].
EXPORT void attend(const char* isa, const float* q, const float* keys, const float* values, int n, int d, float scale,
                   bool halves, float* y) {
    const Kernels& kernels = *kernels_for(isa);
    const Rounding rounding;
    std::vector<float> rows((size_t)n * 2 * d), scores(n + LANES);
    std::vector<const float*> list(n);
    for (int i = 0; i < n; i++) {
        float* row = rows.data() + (size_t)i * 2 * d;
        list[i] = row;
        if (halves) {
            kernels.to_fp16(keys + (size_t)i * d, d, (uint16_t*)row);
            kernels.to_fp16(values + (size_t)i * d, d, (uint16_t*)row + d);
            continue;
        }
        std::copy_n(keys + (size_t)i * d, d, row);
        std::copy_n(values + (size_t)i * d, d, row + d);
    }
    kernels.attend(q, {list.data(), n, halves}, 0, d, d, scale, nullptr, scores.data(), y);
}

// y [k] of x [k]; bias null: RMSNorm.
EXPORT void norm(const char* isa, const float* x, int k, const float* gain, const float* bias, float eps, float* y) {
    const Kernels& kernels = *kernels_for(isa);
    const Rounding rounding;
    if (bias)
        kernels.layer_norm(x, k, gain, bias, eps, y);
    else
        kernels.rms_norm(x, k, gain, eps, y);
}

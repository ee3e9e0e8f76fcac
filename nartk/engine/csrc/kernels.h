// What the engine computes with. Every kernel is batch-invariant: each number it writes is one sum in one
// order over its own token's data, whatever else is computed beside it.
//
// Symbols: n tokens, k inputs, m outputs of a linear layer, d features of a head, V words.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nartk {

enum class Type : int { fp32 = 0, bf16 = 1, int8 = 2, int16 = 3 };  // int16: of attention alone
enum class Activation : int { none = 0, relu, gelu, gelu_tanh, silu, sigmoid };

constexpr int PANEL = 32;                // outputs that lie beside each other in a packed weight
constexpr int LANES = 16;                // floats of a vector
constexpr float LEAST_INT8 = 0x1p-100f;  // smaller steps, and weights, have no integers: they become 0
constexpr int MOST_INT8 = 65536;         // inputs of an int8 layer: their sums fit 32 bits, also of 255 times 127
constexpr int LARGEST_INT16 = 2047;      // of the integers of int16
constexpr int MOST_INT16 = 512;          // inputs of an int16 layer: sums of 2047 times 2047 fit 32 bits

// Weights [m,k] in panels of 32 outputs, m filled up with zeros; the same layout on every instruction set:
// fp32 [m/32][k][32], bf16 and int16 [m/32][k/2][32][2], int8 [m/32][k/4][32][4], k filled up with zeros. fp32
// weights that are all fp16 numbers lie as such, and are widened where they are read: half the memory, and no other
// sum.
struct Linear {
    int outputs = 0, inputs = 0;
    Type type = Type::fp32;
    bool halves = false;  // fp32 that lies as fp16
    const void* weights = nullptr;
    const float* bias = nullptr;    // [panels*32]
    const float* scales = nullptr;  // [panels*32], integers: a weight is its integer times its output's scale
    const int32_t* sums = nullptr;  // [panels*32], int8: the sum of each output's integers
    int panels() const { return (outputs + PANEL - 1) / PANEL; }
    int width() const { return panels() * PANEL; }
    int group() const { return type == Type::fp32 ? 1 : type == Type::int8 ? 4 : 2; }  // inputs beside each other
    int groups() const { return (inputs + group() - 1) / group(); }
    size_t bytes() const { return (size_t)width() * groups() * (halves ? 2 : 4); }
};

inline float as_float(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}
// To the nearest, of two the even one.
inline uint16_t bf16_of(float x) {
    const uint32_t bits = bits_of(x);
    return (uint16_t)(x != x ? bits >> 16 | 64 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float from_bf16(uint16_t bits) { return as_float((uint32_t)bits << 16); }
constexpr float LARGEST_FP16 = 65504.0f;
// Its exponent, counted from 112 on, is one of fp32, also where it is denormal. NaN where it is no finite number.
inline float from_fp16(uint16_t bits) {
    const float size = as_float((uint32_t)(bits & 0x7fff) << 13) * 0x1p112f;
    return as_float(bits_of(size > LARGEST_FP16 ? NAN : size) | (uint32_t)(bits & 0x8000) << 16);
}

// What integers n of an int8 layer's inputs, from 0 to 255, stand for: (n - zero) * step. Inputs seldom lie as far on
// one side of 0 as on the other, least of all behind GELU, so that steps from the least to the largest are finer. 0 is
// one of them: most inputs are near it, and what they were off together would not average out.
struct Grid {
    float step;
    int zero;
};

// Where the keys and values of one query's context lie: those of item j at rows[j] + key and rows[j] + value, counted
// in numbers of their type.
struct Attended {
    const float* const* rows;
    int count;
    bool halves = false;  // fp16 lies there
};

// How the numbers of a linear layer leave it: y = act(x w + b) + residual.
struct Epilogue {
    Activation activation = Activation::none;
    bool residual = false;  // adds what y held before
};

struct Kernels {
    const char* name;
    bool bf16;  // whether the processor multiplies bf16 itself
    // Inputs as a linear layer of that type reads them, [n,stride]: bf16 rounded to even; int8 as integers of a
    // Grid, one a token, less 128 where kernels read signed ones; int16 as the integer, with a scale a token. stride:
    // inputs of a row in `to`, a multiple of 4 in bytes.
    void (*to_bf16)(const float* x, int n, int k, int ldx, uint16_t* to, int stride);
    void (*to_fp16)(const float* x, int n, uint16_t* to);  // n a multiple of 16; what is beyond fp16 is its largest
    void (*to_int16)(const float* x, int n, int k, int ldx, int16_t* to, int stride, float* scales);
    void (*to_int8)(const float* x, int n, int k, int ldx, uint8_t* to, int stride, Grid* grids);
    // y [n,ldy] of panels from first to last: x as made above, of the layer's type, with its grids or scales.
    void (*linear)(const Linear& w, const void* x, const void* scales, int n, int stride, float* y, int ldy, int first,
                   int last, Epilogue epilogue);
    void (*row)(const Linear& w, int output, float scale, float* y);  // the weights of one output times scale
    void (*layer_norm)(const float* x, int k, const float* gain, const float* bias, float eps, float* y);
    void (*rms_norm)(const float* x, int k, const float* gain, float eps, float* y);
    void (*add)(float* y, const float* x, int k);
    void (*multiply)(float* y, const float* x, int k, Activation activation);  // by what that gives of x
    // One position of a convolution of each of k channels by itself: bias, then one tap after the other. taps:
    // [count,k], k filled up to 16, as are biases; x [count,ldx] may be read up to there.
    void (*depthwise)(const float* x, int ldx, int count, const float* taps, const float* bias, int k, float* y);
    // One head of one query: d a multiple of 16. `scores` has room for count, filled up to 16.
    void (*attend)(const float* q, Attended over, int key, int value, int d, float scale, const float* bias,
                   float* scores, float* y);
    float (*exponentials)(float* scores, int n);  // exp(score - the largest) in place of scores; their sum
    // The same times 2047 as integers, with zeros up to a multiple of 16; scores stay.
    float (*int16_exponentials)(const float* scores, int n, int16_t* to);
    void (*add_softmax)(float* scores, int k, float by, float* to);  // to += by * softmax(scores), which are used up
    float (*exp_sum)(const float* x, int k, float most);             // sum of exp(x - most)
    int (*best)(const float* x, int k, float* value);                // the first of the largest
};

// The linear layers of avx512_amx, whose other kernels are those of avx512_bf16.
void linear_amx(const Linear& w, const void* x, const void* scales, int n, int stride, float* y, int ldy, int first,
                int last, Epilogue epilogue);
// Of those that this build has.
const Kernels* kernels_avx512_bf16();
const Kernels* kernels_avx512();
const Kernels* kernels_avx2();
const Kernels* kernels_neon();
const Kernels* kernels_plain();
// The best that the processor runs, or the one of that name; null if it is not to be had.
const Kernels* kernels_for(const char* name);

}  // namespace nartk

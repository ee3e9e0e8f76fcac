#include "kernels.h"
#include "portable.h"

#ifdef NARTK_X86
ENABLE_ISA("avx2,fma,f16c")
namespace nartk {
namespace {
#define ISA_NAME "avx2"
#define HAS_BF16 false
#define INT8_FLIP 0
#include "vector_avx2.inc"
#include "bf16_as_fp32.inc"

// |x| times the weight with x's sign: at most 2 * 128 * 127 for two inputs, which 16 bits hold.
struct Int8 {
    using In = uint8_t;
    using Weight = int8_t;
    struct Sum {
        __m256i a, b;
    };
    struct Loaded {
        __m256i a, b;
    };
    using Scale = Grid;
    static constexpr int GROUP = 4;
    static Sum zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
    static Loaded load_weight(const int8_t* w) {
        return {_mm256_loadu_si256((const __m256i*)w), _mm256_loadu_si256((const __m256i*)(w + 32))};
    }
    static __m256i products(__m256i x, __m256i size, __m256i w) {
        return _mm256_madd_epi16(_mm256_maddubs_epi16(size, _mm256_sign_epi8(w, x)), _mm256_set1_epi16(1));
    }
    static Sum step(Sum s, Loaded w, const uint8_t* p) {
        int32_t four;
        memcpy(&four, p, 4);
        const __m256i x = _mm256_set1_epi32(four), size = _mm256_abs_epi8(x);
        return {_mm256_add_epi32(s.a, products(x, size, w.a)), _mm256_add_epi32(s.b, products(x, size, w.b))};
    }
    static F16 finish(Sum s, const Linear& w, const Grid* grid, int at) {
        const __m256i* sums = (const __m256i*)(w.sums + at);
        const __m256i zero = _mm256_set1_epi32(grid->zero - 128);
        const __m256i a = _mm256_mullo_epi32(_mm256_loadu_si256(sums), zero);
        const __m256i b = _mm256_mullo_epi32(_mm256_loadu_si256(sums + 1), zero);
        const F16 whole = {_mm256_cvtepi32_ps(_mm256_sub_epi32(s.a, a)), _mm256_cvtepi32_ps(_mm256_sub_epi32(s.b, b))};
        return mul(mul(whole, set1(grid->step)), load(w.scales + at));
    }
};

struct Int16 {
    using In = int16_t;
    using Weight = int16_t;
    struct Sum {
        __m256i a, b;
    };
    using Loaded = Sum;
    using Scale = float;
    static constexpr int GROUP = 2;
    static Sum zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
    static Loaded load_weight(const int16_t* w) {
        return {_mm256_loadu_si256((const __m256i*)w), _mm256_loadu_si256((const __m256i*)(w + 16))};
    }
    static Sum step(Sum s, Loaded w, const int16_t* p) {
        int32_t two;
        memcpy(&two, p, 4);
        const __m256i x = _mm256_set1_epi32(two);
        return {_mm256_add_epi32(s.a, _mm256_madd_epi16(w.a, x)), _mm256_add_epi32(s.b, _mm256_madd_epi16(w.b, x))};
    }
    static F16 finish(Sum s, const Linear& w, const float* scale, int at) {
        const F16 whole = {_mm256_cvtepi32_ps(s.a), _mm256_cvtepi32_ps(s.b)};
        return mul(mul(whole, set1(*scale)), load(w.scales + at));
    }
};

// Registers: 6 tokens by a vector, which is two registers, of sums, two of weights and an input.
#define FP32_ROWS 6
#define BF16_ROWS 4
#define INT8_ROWS 4
#define FP32_VECTORS 1
#define FP32_ONE 4
#define FP32_TWO 2
#define READ_ANEW(x)
#include "kernels.inc"
}  // namespace
const Kernels* kernels_avx2() { return &table; }
}  // namespace nartk
DISABLE_ISA
#endif

#include "kernels.h"
#include "portable.h"

#ifdef NARTK_X86
ENABLE_ISA("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma")
namespace nartk {
namespace {
#define ISA_NAME "avx512_bf16"
#define HAS_BF16 true
#include "vector_avx512.inc"

// The processor multiplies pairs of bf16 and adds both products to the sum.
struct Bf16 {
    using In = uint16_t;
    using Weight = uint16_t;
    using Sum = F16;
    using Loaded = __m512i;
    using Scale = float;
    static constexpr int GROUP = 2;
    static Sum zero() { return set1(0.0f); }
    static Loaded load_weight(const uint16_t* w) { return _mm512_loadu_si512(w); }
    static Sum step(Sum s, Loaded w, const uint16_t* x) {
        int32_t pair;
        memcpy(&pair, x, 4);
        return {_mm512_dpbf16_ps(s.v, (__m512bh)w, (__m512bh)_mm512_set1_epi32(pair))};
    }
    static F16 finish(Sum s, const Linear&, const float*, int) { return s; }
};

#include "avx512.inc"
#include "kernels.inc"
}  // namespace
const Kernels* kernels_avx512_bf16() { return &table; }
}  // namespace nartk
DISABLE_ISA
#endif

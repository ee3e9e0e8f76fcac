#include "kernels.h"
#include "portable.h"

#ifdef NARTK_X86
ENABLE_ISA("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma")
namespace nartk {
namespace {
#define ISA_NAME "avx512_bf16"
#define HAS_BF16 true
#include "vector_avx512.inc"
#include "bf16_avx512.inc"
#include "avx512.inc"
#include "kernels.inc"
}  // namespace
const Kernels* kernels_avx512_bf16() { return &table; }
}  // namespace nartk
DISABLE_ISA
#endif

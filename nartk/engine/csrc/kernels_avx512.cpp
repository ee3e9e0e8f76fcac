#include "kernels.h"
#include "portable.h"

#ifdef NARTK_X86
ENABLE_ISA("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")
namespace nartk {
namespace {
#define ISA_NAME "avx512"
#define HAS_BF16 false
#include "vector_avx512.inc"
#include "bf16_as_fp32.inc"
#include "avx512.inc"
#include "kernels.inc"
}  // namespace
const Kernels* kernels_avx512() { return &table; }
}  // namespace nartk
DISABLE_ISA
#endif

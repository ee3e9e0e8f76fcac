#include "kernels.h"
#include "portable.h"

#ifdef NARTK_ARM
namespace nartk {
namespace {
#define ISA_NAME "neon"
#define HAS_BF16 false
#include "vector_neon.inc"
#include "bf16_as_fp32.inc"
#include "int8_plain.inc"

#define FP32_ROWS 4
#define BF16_ROWS 4
#define INT8_ROWS 4
#define FP32_VECTORS 1
#define FP32_ONE 2
#define FP32_TWO 2
#include "kernels.inc"
}  // namespace
}  // namespace nartk
#endif

namespace nartk {
const Kernels* kernels_neon() {
#ifdef NARTK_ARM
    return &table;
#else
    return nullptr;
#endif
}
}  // namespace nartk

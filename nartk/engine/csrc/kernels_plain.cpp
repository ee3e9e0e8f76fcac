#include "kernels.h"
#include "portable.h"

namespace nartk {
namespace {
#define ISA_NAME "plain"
#define HAS_BF16 false
#include "vector_plain.inc"
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

namespace nartk {
const Kernels* kernels_plain() { return &table; }
}  // namespace nartk

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
#include "kernels.inc"
}  // namespace
const Kernels* kernels_neon() { return &table; }
}  // namespace nartk
#endif

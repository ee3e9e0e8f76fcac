#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O2")  // by -O3 these vectors take half a minute to compile and are no faster
#endif
#include "kernels.h"
#include "portable.h"

namespace nartk {
namespace {
#define ISA_NAME "plain"
#define HAS_BF16 false
#include "vector_plain.inc"
#include "bf16_as_fp32.inc"
#include "int8_plain.inc"
#include "kernels.inc"
}  // namespace
const Kernels* kernels_plain() { return &table; }
}  // namespace nartk

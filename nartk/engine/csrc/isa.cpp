#include <cstdlib>
#include <cstring>

#include "kernels.h"
#include "portable.h"

#if defined(NARTK_X86) && defined(__GNUC__)
#include <cpuid.h>
#endif

namespace nartk {

namespace {

bool runs(const char* name) {
#if defined(NARTK_X86) && defined(__GNUC__)
    __builtin_cpu_init();
    unsigned a, b, c = 0, d;  // asked here for F16C, which not every compiler knows by name
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512vnni");
    if (!std::strcmp(name, "avx512_bf16")) return avx512 && __builtin_cpu_supports("avx512bf16");
    if (!std::strcmp(name, "avx512")) return avx512;
    if (!std::strcmp(name, "avx2")) return avx2;
#endif
    return !std::strcmp(name, "plain") || !std::strcmp(name, "neon");
}

}  // namespace

const Kernels* kernels_for(const char* name) {
    const Kernels* const all[] = {
#if defined(NARTK_X86)
        kernels_avx512_bf16(), kernels_avx512(), kernels_avx2(),
#elif defined(NARTK_ARM)
        kernels_neon(),
#endif
        kernels_plain()};
    for (const Kernels* found : all)
        if (runs(found->name) && (!*name || !std::strcmp(name, found->name))) return found;
    return nullptr;
}

}  // namespace nartk

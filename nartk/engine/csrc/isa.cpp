#include <cstdlib>
#include <cstring>

#include "kernels.h"
#include "portable.h"

#if defined(NARTK_X86) && defined(__GNUC__)
#include <cpuid.h>
#endif
#ifdef NARTK_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace nartk {

namespace {

#ifdef NARTK_AMX
// Whether the processor has tiles and multiplies in them, and Linux, from 5.16 on, lets this process use them.
bool tiles() {
#ifdef NARTK_TILES  // a file of the tests
    return true;
#endif
    constexpr unsigned needed = 1u << 22 | 1u << 24 | 1u << 25;  // of EDX: bf16, tiles, int8
    constexpr long request = 0x1023, state = 18;                 // ARCH_REQ_XCOMP_PERM, XTILEDATA
    unsigned a, b, c, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & needed) == needed &&
           !syscall(SYS_arch_prctl, request, state);
}

// Here, since every processor makes it: the file of the kernels is compiled for those that have tiles.
const Kernels* kernels_avx512_amx() {
    static const Kernels table = [] {
        Kernels made = *kernels_avx512_bf16();
        made.name = "avx512_amx";
        made.linear = linear_amx;
        return made;
    }();
    return &table;
}
#endif

bool runs(const char* name) {
#if defined(NARTK_X86) && defined(__GNUC__)
    __builtin_cpu_init();
    unsigned a, b, c = 0, d;  // asked here for F16C, which not every compiler knows by name
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512vnni");
    const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
#ifdef NARTK_AMX
    if (!std::strcmp(name, "avx512_amx")) return bf16 && tiles();
#endif
    if (!std::strcmp(name, "avx512_bf16")) return bf16;
    if (!std::strcmp(name, "avx512")) return avx512;
    if (!std::strcmp(name, "avx2")) return avx2;
#endif
    return !std::strcmp(name, "plain") || !std::strcmp(name, "neon");
}

}  // namespace

const Kernels* kernels_for(const char* name) {
    const Kernels* const all[] = {
#ifdef NARTK_AMX
        kernels_avx512_amx(),
#endif
#if defined(NARTK_X86)
        kernels_avx512_bf16(), kernels_avx512(), kernels_avx2(),
#elif defined(NARTK_ARM)
        kernels_neon(),
#endif
        kernels_plain()};
    for (const Kernels* found : all)
        if ((!*name || !std::strcmp(name, found->name)) && runs(found->name)) return found;
    return nullptr;
}

}  // namespace nartk

// The plain kernels alone, in a library that compiles in seconds, for ctypes.
#include "weights.h"

using namespace nartk;

// y [n, outputs rounded up to 32] of weights [outputs,inputs] and x [n,inputs].
extern "C" void plain_linear(const float* weights, int outputs, int inputs, const float* x, int n, float* y) {
    const Packed packed(weights, nullptr, outputs, inputs, Type::fp32);
    const Linear& w = packed.linear;
    kernels_plain()->linear(w, x, nullptr, n, inputs, y, w.width(), 0, w.panels(), {});
}

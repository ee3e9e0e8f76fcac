// Packed weights of a linear layer: made from fp32, or read where they lie.
#pragma once
#include "kernels.h"

namespace nartk {

class Packed {
  public:
    // weights [outputs,inputs], bias [outputs] or null.
    Packed(const float* weights, const float* bias, int outputs, int inputs, Type type);
    // Parts as `linear` holds them, which stay the caller's; sums are made anew.
    Packed(const void* weights, const float* bias, const float* scales, int outputs, int inputs, Type type);
    ~Packed();
    Packed(const Packed&) = delete;
    Packed& operator=(const Packed&) = delete;
    Linear linear;

  private:
    void take_bias(const float* bias);
    void count_sums();
    void* own_weights = nullptr;
    float *own_bias = nullptr, *own_scales = nullptr;
    int32_t* own_sums = nullptr;
};

}  // namespace nartk

// Packed weights of a linear layer: made from fp32, or read where they lie.
#pragma once
#include <memory>
#include <vector>

#include "cells.h"
#include "kernels.h"

namespace nartk {

class Packed {
  public:
    // weights [outputs,inputs], bias [outputs] or null. scales [outputs] of int8: those of weights that are integers
    // times them; null: they are chosen.
    Packed(const float* weights, const float* bias, int outputs, int inputs, Type type, const float* scales = nullptr);
    // Parts as `linear` holds them, which stay the caller's; sums are made anew.
    Packed(const void* weights, const float* bias, const float* scales, int outputs, int inputs, Type type);
    // Some outputs of a layer, as many as `which`, in that order.
    Packed(const Linear& from, const int* which, int count);
    Linear linear;

  private:
    void finish(const float* bias);
    std::unique_ptr<void, void (*)(void*)> own_weights{nullptr, release};
    std::vector<float> own_bias, own_scales;
    std::vector<int32_t> own_sums;
};

}  // namespace nartk

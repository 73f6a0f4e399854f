// Attention by cuDNN where it serves, else by another.
#pragma once

#if defined(TRAINER_CUDA)

#include <cstddef>
#include <memory>

#include "cuda/kernel_set.h"

namespace trainer::cuda {

// cuDNN takes whole causal sequences in bf16, with heads of a multiple of 8, as of version 9.16, and where it
// has kernels for the device; backward on compute capability 8 and 9. `otherwise` takes the rest: documents
// within a sequence, segments, fp32. Which of the two a shape gets is decided at its first call and logged
// then. A plan is made at that call and kept, so that a shape has the same bits from then on.
//
// cuDNN's gradients towards keys and values are rounded to bf16 before they are added to dk and dv. Its
// backward is called for parts of the batch, or of the heads, whose slopes fit kMostSlopeBytes.
//
// In a build without cuDNN it is `otherwise` itself.
std::unique_ptr<Attention> make_cudnn_attention(std::unique_ptr<Attention> otherwise);

inline constexpr size_t kMostSlopeBytes = size_t{256} << 20;

}  // namespace trainer::cuda

#endif

// Flash attention (Dao, arXiv 2307.08691) for bf16 (tensor cores, sums in fp32) and fp32 (plain
// multiply-add): blocks of scores exist on chip only; the backward pass recomputes the weights from
// log_sum_exp.
//
// Every result is one sum in a fixed order by one thread, so bits do not depend on the order of blocks. bf16
// rounds weights and slopes to bf16 before their products. Heads have up to 128 elements. Errors of the
// arguments throw std::logic_error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cuda/backend.h"
#include "ops/kernel_set.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {

// Arguments are KernelSet's, except for documents: AttentionShape::document_starts is not looked at (it is in
// host memory). `document_first` [batch * key_rows], on the device, is for each position the first position
// of its document; null: each batch row is one document.
void attention_forward(Ref out, float* log_sum_exp, ConstRef q, ConstRef k, ConstRef v,
                       const AttentionShape& s, const int32_t* document_first, Stream stream);

// `workspace`: at least attention_backward_workspace(s) bytes, aligned to 16.
void attention_backward(Ref dq, float* dk, float* dv, ConstRef dout, ConstRef out, const float* log_sum_exp,
                        ConstRef q, ConstRef k, ConstRef v, const AttentionShape& s,
                        const int32_t* document_first, std::span<std::byte> workspace, Stream stream);
size_t attention_backward_workspace(const AttentionShape& s);

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE

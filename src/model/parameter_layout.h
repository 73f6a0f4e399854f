// Places a layer's parameters in its flat block.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "model/layer.h"

namespace trainer {

class ParameterLayout {
 public:
  // Groups start on 64-byte boundaries in fp32 and in bf16 blocks alike.
  static constexpr int64_t kAlignment = 32;  // elements

  // Appends tensors that lie directly behind one another, so that one operation may take them as one matrix.
  // Returns the offset of the first.
  int64_t add_group(std::vector<ParameterSpec> group) {
    const int64_t begin = size();
    end_ = begin;
    for (auto& spec : group) {
      spec.offset = end_;
      end_ += spec.count();
      parameters_.push_back(std::move(spec));
    }
    return begin;
  }
  // `reserved` (elements): the room it takes where other ranks hold more of it, so that all lay out alike.
  int64_t add(ParameterSpec spec, int64_t reserved = 0) {
    spec.reserved = reserved;
    std::vector<ParameterSpec> group;
    group.push_back(std::move(spec));
    const int64_t begin = add_group(std::move(group));
    end_ = std::max(end_, begin + reserved);
    return begin;
  }

  int64_t size() const { return (end_ + kAlignment - 1) / kAlignment * kAlignment; }
  const std::vector<ParameterSpec>& parameters() const { return parameters_; }

  // Zeros in gradients of this layout that hold nothing yet, but in the matrices, which products write.
  void clear_beside_matrices(KernelSet& kernels, float* gradients) const {
    int64_t begin = 0;
    const auto clear_to = [&](int64_t end) {
      if (end > begin) kernels.fill_zero(gradients + begin, static_cast<size_t>(end - begin) * sizeof(float));
    };
    for (const ParameterSpec& p : parameters_) {
      if (p.shape.size() < 2) continue;
      clear_to(p.offset);
      begin = p.offset + p.count();
    }
    clear_to(size());
  }

 private:
  std::vector<ParameterSpec> parameters_;
  int64_t end_ = 0;
};

inline ParameterSpec matrix_spec(std::string name, int64_t rows, int64_t columns, double init_std,
                                 bool transposed_on_disk = false) {
  return {.name = std::move(name),
          .shape = {rows, columns},
          .init = InitKind::kNormal,
          .init_std = init_std,
          .transposed_on_disk = transposed_on_disk};
}
inline ParameterSpec bias_spec(std::string name, int64_t size) {
  return {.name = std::move(name), .shape = {size}, .init = InitKind::kZero};
}
inline ParameterSpec gain_spec(std::string name, int64_t size) {
  return {.name = std::move(name), .shape = {size}, .init = InitKind::kOne};
}

}  // namespace trainer

#include "cuda/shape_checks.h"

#include <limits>

#include "base/error.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {
namespace {

// Kernels count rows and columns in 32 bits and round them up to whole tiles.
constexpr int64_t kLargestCount = std::numeric_limits<int32_t>::max() - 256;

}  // namespace

void check_product(DType a, DType b, int64_t m, int64_t n, int64_t k) {
  require(a == b, "a product of {} by {}", name_of(a), name_of(b));
  require(m <= kLargestCount && n <= kLargestCount && k <= kLargestCount,
          "a product of {} x {} x {} is beyond 32-bit indices", m, n, k);
}

void check_attention(const AttentionShape& s, DType type, std::initializer_list<ConstRef> operands) {
  for (const ConstRef& operand : operands) {
    require(operand.dtype == type, "attention with operands of {} and {}", name_of(type),
            name_of(operand.dtype));
  }
  require(s.head_dim >= 1 && s.head_dim <= kLargestHeadDim,
          "attention with heads of {}: these kernels take up to {}", s.head_dim, kLargestHeadDim);
  require(s.scale > 0.0f, "attention with a scale of {}", s.scale);
  require(s.kv_heads >= 1 && s.heads % s.kv_heads == 0, "attention of {} heads over {} of keys", s.heads,
          s.kv_heads);
  require(s.key_length <= s.key_rows && s.query_offset + s.query_length <= s.key_length,
          "attention of {} queries at {} over {} keys in rows of {}", s.query_length, s.query_offset,
          s.key_length, s.key_rows);
  constexpr int64_t kLargestGrid = 65535;
  require(s.key_length <= kLargestCount && s.batch <= kLargestGrid && s.heads <= kLargestGrid &&
              s.batch * s.key_rows <= kLargestCount,
          "attention of {} rows of {} keys, {} heads is beyond 32-bit indices", s.batch, s.key_rows, s.heads);
}

void check_attention_workspace(size_t granted, size_t needed) {
  require(granted >= needed, "attention's backward has {} of {} bytes of workspace", granted, needed);
}

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE

// Which keys a query of attention sees.
#pragma once

#include <algorithm>

#include "ops/kernel_set.h"

namespace trainer {

struct VisibleKeys {
  int64_t first, last;  // [first, last)
};

// Of query `i` of batch row `b`.
inline VisibleKeys visible_keys(const AttentionShape& s, int64_t b, int64_t i) {
  const int64_t own = s.query_offset + i;
  int64_t first = 0;
  if (!s.document_starts.empty()) {
    const int64_t position = b * s.key_rows + own;
    const auto after = std::upper_bound(s.document_starts.begin(), s.document_starts.end(), position);
    first = std::max<int64_t>(0, *(after - 1) - b * s.key_rows);
  }
  return {first, std::min(own + 1, s.key_length)};
}

}  // namespace trainer

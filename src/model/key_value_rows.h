// Rows of a call inside key/value buffers that hold longer sequences.
#pragma once

#include <cstdint>

namespace trainer {

// Calls visit(row of the call, row of the buffer, rows) for each run that is contiguous in both.
// `buffer_rows`: tokens from one batch row of the buffer to the next; `offset`: of the call's first token in
// its batch row.
template <class Visit>
void for_each_run(int64_t micro_batch, int64_t sequence, int64_t buffer_rows, int64_t offset, Visit visit) {
  if (buffer_rows == sequence) return visit(int64_t{0}, int64_t{0}, micro_batch * sequence);
  for (int64_t b = 0; b < micro_batch; ++b) visit(b * sequence, b * buffer_rows + offset, sequence);
}

}  // namespace trainer

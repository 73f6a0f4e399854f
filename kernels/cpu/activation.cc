#include "base/error.h"
#include "cpu/host_kernels.h"
#include "cpu/parallel.h"

namespace trainer {

void HostKernels::swiglu_forward(Ref y, ConstRef gate_up, int64_t tokens, int64_t ffn) {
  require(y.dtype == gate_up.dtype, "swiglu_forward: its tensors have several element types");
  parallel_ranges(threads_, tokens, rows_of_a_part(ffn), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      vector_.swiglu_forward(y.at(t * ffn), gate_up.at(2 * t * ffn), gate_up.at((2 * t + 1) * ffn), ffn);
    }
  });
}

void HostKernels::swiglu_backward(Ref dgate_up, ConstRef dy, ConstRef gate_up, int64_t tokens, int64_t ffn) {
  require(dgate_up.dtype == dy.dtype && dy.dtype == gate_up.dtype,
          "swiglu_backward: its tensors have several element types");
  parallel_ranges(threads_, tokens, rows_of_a_part(ffn), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t gate = 2 * t * ffn, up = gate + ffn;
      vector_.swiglu_backward(dgate_up.at(gate), dgate_up.at(up), dy.at(t * ffn), gate_up.at(gate),
                              gate_up.at(up), ffn);
    }
  });
}

void HostKernels::gelu_forward(Ref y, ConstRef x, int64_t count, bool exact) {
  require(y.dtype == x.dtype, "gelu_forward: its tensors have several element types");
  parallel_ranges(threads_, count, kElementsOfAPart, [&](int64_t begin, int64_t end) {
    vector_.gelu_forward(y.at(begin), x.at(begin), end - begin, exact);
  });
}

void HostKernels::gelu_backward(Ref dx, ConstRef dy, ConstRef x, int64_t count, bool exact) {
  require(dx.dtype == dy.dtype && dy.dtype == x.dtype,
          "gelu_backward: its tensors have several element types");
  parallel_ranges(threads_, count, kElementsOfAPart, [&](int64_t begin, int64_t end) {
    vector_.gelu_backward(dx.at(begin), dy.at(begin), x.at(begin), end - begin, exact);
  });
}

}  // namespace trainer

#include "ops/reference_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "ops/element.h"

namespace trainer {
namespace {

void accumulate(float& sum, double value) { sum = static_cast<float>(static_cast<double>(sum) + value); }

int64_t row_offset(const RowShape& shape, int64_t row) {
  return row / shape.inner * shape.outer_stride + row % shape.inner * shape.columns;
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

constexpr double kTanhCubic = 0.044715;

double tanh_argument(double x) { return std::sqrt(2.0 / std::numbers::pi) * (x + kTanhCubic * x * x * x); }

double normal_distribution(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

double normal_density(double x) { return std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi); }

}  // namespace

void ReferenceKernels::linear_forward(Ref y, ConstRef x, ConstRef w, ConstRef bias, int64_t m, int64_t n,
                                      int64_t k) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = bias ? load_element(bias, j) : 0.0;
      for (int64_t p = 0; p < k; ++p) sum += load_element(x, i * k + p) * load_element(w, j * k + p);
      store_element(y, i * n + j, sum);
    }
  }
}

void ReferenceKernels::linear_backward_input(Ref dx, ConstRef dy, ConstRef w, int64_t m, int64_t n, int64_t k,
                                             bool accumulate) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t p = 0; p < k; ++p) {
      double sum = accumulate ? load_element(dx, i * k + p) : 0.0;
      for (int64_t j = 0; j < n; ++j) sum += load_element(dy, i * n + j) * load_element(w, j * k + p);
      store_element(dx, i * k + p, sum);
    }
  }
}

void ReferenceKernels::linear_backward_weight(float* dw, ConstRef dy, ConstRef x, int64_t m, int64_t n,
                                              int64_t k, bool accumulate) {
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t p = 0; p < k; ++p) {
      double sum = accumulate ? dw[j * k + p] : 0.0;
      for (int64_t i = 0; i < m; ++i) sum += load_element(dy, i * n + j) * load_element(x, i * k + p);
      dw[j * k + p] = static_cast<float>(sum);
    }
  }
}

void ReferenceKernels::bias_backward(float* db, ConstRef dy, int64_t m, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    double sum = 0.0;
    for (int64_t i = 0; i < m; ++i) sum += load_element(dy, i * n + j);
    accumulate(db[j], sum);
  }
}

void ReferenceKernels::embedding_forward(Ref y, const int32_t* tokens, ConstRef table,
                                         const int32_t* positions, ConstRef position_table, int64_t count,
                                         int64_t hidden) {
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t c = 0; c < hidden; ++c) {
      double value = tokens[t] < 0 ? 0.0 : load_element(table, tokens[t] * hidden + c);
      if (position_table) value += load_element(position_table, positions[t] * hidden + c);
      store_element(y, t * hidden + c, value);
    }
  }
}

void ReferenceKernels::embedding_backward(float* dtable, const int32_t* tokens, float* dposition,
                                          const int32_t* positions, ConstRef dy, int64_t count,
                                          int64_t hidden) {
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t c = 0; c < hidden; ++c) {
      const double value = load_element(dy, t * hidden + c);
      if (tokens[t] >= 0) accumulate(dtable[tokens[t] * hidden + c], value);
      if (dposition) accumulate(dposition[positions[t] * hidden + c], value);
    }
  }
}

void ReferenceKernels::norm_forward(const NormForward& a) {
  const int64_t columns = a.x_shape.columns;
  std::vector<double> row(static_cast<size_t>(columns));
  for (int64_t r = 0; r < a.x_shape.outer * a.x_shape.inner; ++r) {
    const int64_t x_at = row_offset(a.x_shape, r), y_at = row_offset(a.y_shape, r);
    double mean = 0.0, square = 0.0;
    for (int64_t c = 0; c < columns; ++c) {
      double value = load_element(a.x, x_at + c);
      if (a.delta) {
        store_element(a.sum, x_at + c, value + load_element(a.delta, x_at + c));
        value = load_element(a.sum, x_at + c);
      }
      row[c] = value;
      mean += value / static_cast<double>(columns);
    }
    if (a.kind == NormKind::kRms) mean = 0.0;
    for (const double value : row) square += (value - mean) * (value - mean) / static_cast<double>(columns);
    const double reciprocal = 1.0 / std::sqrt(square + a.epsilon);
    if (a.kind == NormKind::kLayer) a.mean[r] = static_cast<float>(mean);
    a.reciprocal[r] = static_cast<float>(reciprocal);
    for (int64_t c = 0; c < columns; ++c) {
      const double bias = a.bias ? load_element(a.bias, c) : 0.0;
      store_element(a.y, y_at + c, (row[c] - mean) * reciprocal * load_element(a.weight, c) + bias);
    }
  }
}

void ReferenceKernels::norm_backward(const NormBackward& a) {
  const int64_t columns = a.x_shape.columns;
  const auto width = static_cast<double>(columns);
  std::vector<double> dweight(static_cast<size_t>(columns)), dbias(dweight);
  for (int64_t r = 0; r < a.x_shape.outer * a.x_shape.inner; ++r) {
    const int64_t x_at = row_offset(a.x_shape, r), dy_at = row_offset(a.dy_shape, r);
    const int64_t dx_at = row_offset(a.dx_shape, r);
    const double mean = a.kind == NormKind::kLayer ? a.mean[r] : 0.0, reciprocal = a.reciprocal[r];
    const auto normalised = [&](int64_t c) { return (load_element(a.x, x_at + c) - mean) * reciprocal; };
    double sum = 0.0, product = 0.0;
    for (int64_t c = 0; c < columns; ++c) {
      const double dy = load_element(a.dy, dy_at + c), scaled = dy * load_element(a.weight, c);
      sum += scaled;
      product += scaled * normalised(c);
      dweight[c] += dy * normalised(c);
      dbias[c] += dy;
    }
    if (a.kind == NormKind::kRms) sum = 0.0;
    for (int64_t c = 0; c < columns; ++c) {
      const double scaled = load_element(a.dy, dy_at + c) * load_element(a.weight, c);
      double dx = reciprocal * (scaled - sum / width - normalised(c) * product / width);
      if (a.dresidual) dx += load_element(a.dresidual, dx_at + c);
      store_element(a.dx, dx_at + c, dx);
    }
  }
  for (int64_t c = 0; c < columns; ++c) {
    if (a.dweight) accumulate(a.dweight[c], dweight[c]);
    if (a.dbias) accumulate(a.dbias[c], dbias[c]);
  }
}

void ReferenceKernels::rope(Ref out, ConstRef in, const RopeArguments& a) {
  const int64_t half = a.head_dim / 2;
  for (int64_t t = 0; t < a.tokens; ++t) {
    for (int64_t h = 0; h < a.heads; ++h) {
      for (int64_t i = 0; i < half; ++i) {
        const int64_t from = t * a.in_stride + h * a.head_dim + i, to = t * a.out_stride + h * a.head_dim + i;
        const double cosine = a.cosine[a.positions[t] * half + i];
        const double sine = (a.inverse ? -1.0 : 1.0) * a.sine[a.positions[t] * half + i];
        const double low = load_element(in, from), high = load_element(in, from + half);
        store_element(out, to, low * cosine - high * sine);
        store_element(out, to + half, high * cosine + low * sine);
      }
    }
  }
}

void ReferenceKernels::swiglu_forward(Ref y, ConstRef gate_up, int64_t tokens, int64_t ffn) {
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t f = 0; f < ffn; ++f) {
      const double gate = load_element(gate_up, t * 2 * ffn + f);
      store_element(y, t * ffn + f, gate * sigmoid(gate) * load_element(gate_up, t * 2 * ffn + ffn + f));
    }
  }
}

void ReferenceKernels::swiglu_backward(Ref dgate_up, ConstRef dy, ConstRef gate_up, int64_t tokens,
                                       int64_t ffn) {
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t f = 0; f < ffn; ++f) {
      const int64_t gate_at = t * 2 * ffn + f, up_at = gate_at + ffn;
      const double gate = load_element(gate_up, gate_at), up = load_element(gate_up, up_at);
      const double gradient = load_element(dy, t * ffn + f), s = sigmoid(gate);
      store_element(dgate_up, gate_at, gradient * up * s * (1.0 + gate * (1.0 - s)));
      store_element(dgate_up, up_at, gradient * gate * s);
    }
  }
}

void ReferenceKernels::gelu_forward(Ref y, ConstRef x, int64_t count, bool exact) {
  for (int64_t i = 0; i < count; ++i) {
    const double value = load_element(x, i);
    const double gate = exact ? normal_distribution(value) : sigmoid(2.0 * tanh_argument(value));
    store_element(y, i, value * gate);
  }
}

void ReferenceKernels::gelu_backward(Ref dx, ConstRef dy, ConstRef x, int64_t count, bool exact) {
  for (int64_t i = 0; i < count; ++i) {
    const double value = load_element(x, i);
    double slope = normal_distribution(value) + value * normal_density(value);
    if (!exact) {
      const double s = sigmoid(2.0 * tanh_argument(value));  // (1 + tanh) / 2
      const double inner = std::sqrt(2.0 / std::numbers::pi) * (1.0 + 3.0 * kTanhCubic * value * value);
      slope = s + value * 2.0 * s * (1.0 - s) * inner;
    }
    store_element(dx, i, load_element(dy, i) * slope);
  }
}

void ReferenceKernels::adamw(const AdamW& a) {
  const double beta1 = a.beta1, beta2 = a.beta2, rate = a.learning_rate;
  const double correction1 = 1.0 - std::pow(beta1, static_cast<double>(a.step));
  const double correction2 = 1.0 - std::pow(beta2, static_cast<double>(a.step));
  for (int64_t i = 0; i < a.count; ++i) {
    const double gradient = static_cast<double>(a.gradient[i]) * a.gradient_scale;
    const double moment1 = beta1 * a.moment1[i] + (1.0 - beta1) * gradient;
    const double moment2 = beta2 * a.moment2[i] + (1.0 - beta2) * gradient * gradient;
    const double update = moment1 / correction1 / (std::sqrt(moment2 / correction2) + a.epsilon);
    const double master = a.master[i];
    a.moment1[i] = static_cast<float>(moment1);
    a.moment2[i] = static_cast<float>(moment2);
    a.master[i] = static_cast<float>(master - rate * a.weight_decay * master - rate * update);
    if (a.working) store_element(a.working, i, a.master[i]);
  }
}

void ReferenceKernels::block_squares(double* squares, const float* x, int64_t count) {
  for (int64_t begin = 0; begin < count; begin += kNormBlock) {
    double sum = 0.0;
    for (int64_t i = begin; i < std::min(count, begin + kNormBlock); ++i) {
      sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
    squares[begin / kNormBlock] = sum;
  }
}

void ReferenceKernels::fill_zero(void* data, size_t bytes) {
  if (bytes > 0) std::memset(data, 0, bytes);
}

void ReferenceKernels::convert(Ref to, ConstRef from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) store_element(to, i, load_element(from, i));
}

void ReferenceKernels::convert_rows(Ref to, int64_t to_stride, ConstRef from, int64_t from_stride,
                                    int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) convert(to.at(r * to_stride), from.at(r * from_stride), columns);
}

void ReferenceKernels::add(Ref y, ConstRef x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) store_element(y, i, load_element(y, i) + load_element(x, i));
}

std::unique_ptr<KernelSet> make_reference_kernels() { return std::make_unique<ReferenceKernels>(); }

}  // namespace trainer

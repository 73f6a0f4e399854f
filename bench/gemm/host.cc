#include <omp.h>

#include <algorithm>
#include <dnnl.hpp>
#include <unordered_map>

#include "base/error.h"
#include "gemm/backends.h"
#include "support/kernel_bench.h"

namespace trainer {
namespace {

enum class Direction { kForward, kBackwardInput, kBackwardWeight };

// Of the reference's result only so many rows are made.
constexpr int64_t kCheckedRows = 2;

// C[rows, columns] = A[rows, depth] B[depth, columns] by oneDNN; elements of row r and column c are
// r * row_stride + c * column_stride apart from the first.
class DnnlProduct {
 public:
  struct Matrix {
    void* data;
    DType dtype;
    int64_t row_stride, column_stride;
  };
  DnnlProduct(const Matrix& a, const Matrix& b, const Matrix& c, int64_t rows, int64_t depth, int64_t columns,
              int threads)
      : threads_(threads) {
    const Threads set(threads_);
    const auto describe = [](const Matrix& m, int64_t m_rows, int64_t m_columns) {
      const auto type = m.dtype == DType::kF32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
      return dnnl::memory::desc({m_rows, m_columns}, type, dnnl::memory::dims{m.row_stride, m.column_stride});
    };
    const auto a_shape = describe(a, rows, depth), b_shape = describe(b, depth, columns),
               c_shape = describe(c, rows, columns);
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a_shape, b_shape, c_shape), engine_);
    primitive_ = dnnl::matmul(description);
    arguments_ = {{DNNL_ARG_SRC, dnnl::memory(a_shape, engine_, a.data)},
                  {DNNL_ARG_WEIGHTS, dnnl::memory(b_shape, engine_, b.data)},
                  {DNNL_ARG_DST, dnnl::memory(c_shape, engine_, c.data)}};
  }
  void run() {
    const Threads set(threads_);
    primitive_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  class Threads {
   public:
    explicit Threads(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }
    ~Threads() { omp_set_num_threads(before_); }

   private:
    int before_;
  };

  int threads_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::matmul primitive_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

struct ProductOperands {
  GemmShape s;
  Values x, w, y;   // [m, k], [n, k], [m, n]
  Values dx;        // [m, k]
  Values dw, peer;  // [n, k]; large enough for any result of the peer

  ProductOperands(DType dtype, const GemmShape& s)
      : s(s),
        x(dtype, s.m * s.k, 1),
        w(dtype, s.n * s.k, 2),
        y(dtype, s.m * s.n, 3),
        dx(dtype, s.m * s.k),
        dw(DType::kF32, s.n * s.k),
        peer(DType::kF32, std::max({s.m * s.n, s.m * s.k, s.n * s.k})) {}
};

void run_product(KernelSet& kernels, Direction direction, const ProductOperands& o) {
  const auto& [m, n, k] = o.s;
  if (direction == Direction::kForward)
    kernels.linear_forward(o.y.ref(), o.x.ref(), o.w.ref(), {}, m, n, k);
  else if (direction == Direction::kBackwardInput)
    kernels.linear_backward_input(o.dx.ref(), o.y.ref(), o.w.ref(), m, n, k, false);
  else
    kernels.linear_backward_weight(o.dw.f32(), o.y.ref(), o.x.ref(), m, n, k);
}

// The first rows of the result, which one call has written; of a weight's gradient, whose arrays began as
// zeros.
void check_product(KernelBench& bench, Direction direction, const ProductOperands& o) {
  const auto& [m, n, k] = o.s;
  const DType dtype = o.x.dtype();
  const AllowedError allowed{5e-5};
  if (direction == Direction::kForward) {
    const int64_t rows = std::min(m, kCheckedRows);
    const Values want(dtype, rows * n);
    bench.reference().linear_forward(want.ref(), o.x.ref(), o.w.ref(), {}, rows, n, k);
    bench.compare("y", all_of(want), {o.y.ref(), 1, rows * n, rows * n}, allowed);
  } else if (direction == Direction::kBackwardInput) {
    const int64_t rows = std::min(m, kCheckedRows);
    const Values want(dtype, rows * k);
    bench.reference().linear_backward_input(want.ref(), o.y.ref(), o.w.ref(), rows, n, k, false);
    bench.compare("dx", all_of(want), {o.dx.ref(), 1, rows * k, rows * k}, allowed);
  } else {
    const int64_t rows = std::min(n, kCheckedRows);
    const Values want(DType::kF32, rows * k), dy(dtype, m * rows);
    bench.reference().convert_rows(dy.ref(), rows, o.y.ref(), n, m, rows);
    bench.reference().linear_backward_weight(want.f32(), dy.ref(), o.x.ref(), m, rows, k);
    bench.compare("dw", all_of(want), {o.dw.ref(), 1, rows * k, rows * k}, allowed);
  }
}

DnnlProduct peer_of(Direction direction, const ProductOperands& o, int threads) {
  const auto& [m, n, k] = o.s;
  const DType dtype = o.x.dtype();
  if (direction == Direction::kForward)
    return {{o.x.ref().data, dtype, k, 1},
            {o.w.ref().data, dtype, 1, k},
            {o.peer.f32(), dtype, n, 1},
            m,
            k,
            n,
            threads};
  if (direction == Direction::kBackwardInput)
    return {{o.y.ref().data, dtype, n, 1},
            {o.w.ref().data, dtype, k, 1},
            {o.peer.f32(), dtype, k, 1},
            m,
            n,
            k,
            threads};
  return {{o.y.ref().data, dtype, 1, n},
          {o.x.ref().data, dtype, k, 1},
          {o.peer.f32(), DType::kF32, k, 1},
          n,
          m,
          k,
          threads};
}

void measure_product(KernelBench& bench, const NamedModel& model, DType dtype, const GemmShape& s) {
  KernelSet& kernels =
      bench.kernels({.dtype = dtype, .tokens = s.m, .widest_row = std::max(s.n, s.k), .hidden = s.k});
  for (const Direction direction :
       {Direction::kForward, Direction::kBackwardInput, Direction::kBackwardWeight}) {
    const ProductOperands operands(dtype, s);
    DnnlProduct peer = peer_of(direction, operands, bench.threads());
    KernelCase c{.operation = direction == Direction::kForward         ? "forward"
                              : direction == Direction::kBackwardInput ? "backward, input"
                                                                       : "backward, weight",
                 .dtype = dtype,
                 .shape = {{"m", s.m}, {"n", s.n}, {"k", s.k}},
                 .ceiling = Ceiling::kMatrixProducts,
                 .work = 2.0 * static_cast<double>(s.m * s.n) * static_cast<double>(s.k),
                 .peer_name = "oneDNN"};
    c.run = [&] { run_product(kernels, direction, operands); };
    c.check = [&] { check_product(bench, direction, operands); };
    c.peer = [&] { peer.run(); };
    bench.add(model, c);
  }
}

}  // namespace

Report gemm_on_host(const Words& words) {
  KernelBench bench("gemm", "host", words, {"--m", "--k", "--n"});
  const Options& options = bench.options();
  const auto length = [&](const char* name) {
    options.required(name);
    return options.integer(name, 0, 1, 1 << 20);
  };
  for (const NamedModel& model : bench.models()) {
    std::vector<GemmShape> shapes = block_products(model.shape, bench.tokens());
    shapes.push_back(classifier_product(model.shape, bench.tokens()));
    const bool own = options.has("--m") || options.has("--k") || options.has("--n");
    if (own) shapes = {{.m = length("--m"), .n = length("--n"), .k = length("--k")}};
    for (const DType dtype : bench.dtypes())
      for (const GemmShape& shape : shapes) measure_product(bench, model, dtype, shape);
    if (own) break;  // one ceiling is enough
  }
  return bench.report();
}

}  // namespace trainer

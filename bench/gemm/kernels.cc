#include <algorithm>
#include <functional>

#include "base/error.h"
#include "gemm/backends.h"
#include "gemm/onednn.h"
#include "support/kernel_bench.h"

namespace trainer {
namespace {

enum class Direction { kForward, kBackwardInput, kBackwardWeight };

// Of the reference's result only so many rows are made.
constexpr int64_t kCheckedRows = 2;

struct ProductOperands {
  GemmShape s;
  Values x, w, y;  // [m, k], [n, k], [m, n]
  Values dx;       // [m, k]
  Values dw;       // [n, k]

  ProductOperands(Device& device, DType dtype, const GemmShape& s)
      : s(s),
        x(device, dtype, s.m * s.k, 1),
        w(device, dtype, s.n * s.k, 2),
        y(device, dtype, s.m * s.n, 3),
        dx(device, dtype, s.m * s.k),
        dw(device, DType::kF32, s.n * s.k) {}
};

void run_product(KernelSet& kernels, Direction direction, const ProductOperands& o) {
  const auto& [m, n, k] = o.s;
  if (direction == Direction::kForward)
    kernels.linear_forward(o.y.ref(), o.x.ref(), o.w.ref(), {}, m, n, k);
  else if (direction == Direction::kBackwardInput)
    kernels.linear_backward_input(o.dx.ref(), o.y.ref(), o.w.ref(), m, n, k, false);
  else
    kernels.linear_backward_weight(o.dw.f32(), o.y.ref(), o.x.ref(), m, n, k, true);
}

// The first rows of the result, which one call has written; of a weight's gradient, whose arrays began as
// zeros.
void check_product(KernelBench& bench, Direction direction, const ProductOperands& o) {
  const auto& [m, n, k] = o.s;
  const DType dtype = o.x.dtype();
  const AllowedError allowed{5e-5};
  const Values x = o.x.on_host(), w = o.w.on_host(), y = o.y.on_host();
  if (direction == Direction::kForward) {
    const int64_t rows = std::min(m, kCheckedRows);
    const Values want(host_device(), dtype, rows * n);
    bench.reference().linear_forward(want.ref(), x.ref(), w.ref(), {}, rows, n, k);
    bench.compare("y", all_of(want), {o.y.ref(), 1, rows * n, rows * n}, allowed);
  } else if (direction == Direction::kBackwardInput) {
    const int64_t rows = std::min(m, kCheckedRows);
    const Values want(host_device(), dtype, rows * k);
    bench.reference().linear_backward_input(want.ref(), y.ref(), w.ref(), rows, n, k, false);
    bench.compare("dx", all_of(want), {o.dx.ref(), 1, rows * k, rows * k}, allowed);
  } else {
    const int64_t rows = std::min(n, kCheckedRows);
    const Values want(host_device(), DType::kF32, rows * k), dy(host_device(), dtype, m * rows);
    bench.reference().convert_rows(dy.ref(), rows, y.ref(), n, m, rows);
    bench.reference().linear_backward_weight(want.f32(), dy.ref(), x.ref(), m, rows, k, true);
    bench.compare("dw", all_of(want), {o.dw.ref(), 1, rows * k, rows * k}, allowed);
  }
}

// `result`: large enough for any of them.
std::function<void()> peer_product(Direction direction, const ProductOperands& o, float* result,
                                   int threads) {
  const auto& [m, n, k] = o.s;
  const DType dtype = o.x.dtype();
  void *x = o.x.ref().data, *w = o.w.ref().data, *y = o.y.ref().data;
  if (direction == Direction::kForward)
    return onednn_product({x, dtype, k, 1}, {w, dtype, 1, k}, {result, dtype, n, 1}, m, k, n, threads);
  if (direction == Direction::kBackwardInput)
    return onednn_product({y, dtype, n, 1}, {w, dtype, k, 1}, {result, dtype, k, 1}, m, n, k, threads);
  return onednn_product({y, dtype, 1, n}, {x, dtype, k, 1}, {result, DType::kF32, k, 1}, n, m, k, threads);
}

// What the backend's library does with the same operands, or oneDNN on the host.
void set_peer(KernelCase& c, KernelBench& bench, KernelSet& library, Direction direction,
              const ProductOperands& o) {
  if (bench.backend().own) {
    c.peer_name = "cuBLASLt";
    c.peer = [&, direction] { run_product(library, direction, o); };
  } else if (bench.backend().name == "host") {
    const auto& [m, n, k] = o.s;
    const Values result(bench.device(), DType::kF32, std::max({m * n, m * k, n * k}));
    const std::function<void()> product = peer_product(direction, o, result.f32(), bench.threads());
    if (!product) return;
    c.peer_name = "oneDNN";
    c.peer = [result, product] { product(); };
  }
}

void measure_product(KernelBench& bench, const NamedModel& model, DType dtype, const GemmShape& s) {
  KernelSet& training =
      bench.kernels({.dtype = dtype, .tokens = s.m, .widest_row = std::max(s.n, s.k), .hidden = s.k});
  KernelSet& kernels = bench.backend().own ? *bench.backend().own : training;
  for (const Direction direction :
       {Direction::kForward, Direction::kBackwardInput, Direction::kBackwardWeight}) {
    const ProductOperands operands(bench.device(), dtype, s);
    KernelCase c{.operation = direction == Direction::kForward         ? "forward"
                              : direction == Direction::kBackwardInput ? "backward, input"
                                                                       : "backward, weight",
                 .dtype = dtype,
                 .shape = {{"m", s.m}, {"n", s.n}, {"k", s.k}},
                 .ceiling = Ceiling::kMatrixProducts,
                 .work = 2.0 * static_cast<double>(s.m * s.n) * static_cast<double>(s.k)};
    c.run = [&] { run_product(kernels, direction, operands); };
    c.check = [&] { check_product(bench, direction, operands); };
    set_peer(c, bench, training, direction, operands);
    bench.add(model, c);
  }
}

}  // namespace

Report gemm_on_kernels(const std::string& backend, const Words& words) {
  KernelBench bench("gemm", backend, words, {"--m", "--k", "--n"});
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

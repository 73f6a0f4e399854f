// Norms over rows of activations, with the addition of the residual.
#include "support/kernel_bench.h"

namespace trainer {
namespace {

constexpr const char* kAbout =
    R"(Times the norm of x + delta and its backward with the gradient of the residual: root mean square or layer norm, as
the model has it. Counted: what is read and written for each row.)";

struct NormOperands {
  Values x, delta, sum, weight, bias, y, dy, dresidual, dx, mean, reciprocal, dweight, dbias;

  NormOperands(Device& device, DType dtype, int64_t tokens, int64_t hidden)
      : x(device, dtype, tokens * hidden, 1),
        delta(device, dtype, tokens * hidden, 2),
        sum(device, dtype, tokens * hidden),
        weight(device, dtype, hidden, 3),
        bias(device, dtype, hidden, 4),
        y(device, dtype, tokens * hidden),
        dy(device, dtype, tokens * hidden, 5),
        dresidual(device, dtype, tokens * hidden, 6),
        dx(device, dtype, tokens * hidden),
        mean(device, DType::kF32, tokens),
        reciprocal(device, DType::kF32, tokens),
        dweight(device, DType::kF32, hidden),
        dbias(device, DType::kF32, hidden) {}
};

void measure_norm(KernelBench& bench, const NamedModel& model, DType dtype) {
  const int64_t tokens = bench.tokens(), hidden = model.shape.hidden_size;
  const bool rms = model.shape.rms_norm();
  const NormKind kind = rms ? NormKind::kRms : NormKind::kLayer;
  const RowShape rows{.outer = tokens, .inner = 1, .columns = hidden, .outer_stride = hidden};
  const NormOperands ours(bench.device(), dtype, tokens, hidden), want(host_device(), dtype, tokens, hidden);
  const auto forward = [&](KernelSet& kernels, const NormOperands& o) {
    kernels.norm_forward({.kind = kind,
                          .x_shape = rows,
                          .y_shape = rows,
                          .x = o.x.ref(),
                          .delta = o.delta.ref(),
                          .sum = o.sum.ref(),
                          .weight = o.weight.ref(),
                          .bias = rms ? ConstRef{} : o.bias.ref(),
                          .epsilon = static_cast<float>(model.shape.norm_epsilon),
                          .y = o.y.ref(),
                          .mean = rms ? nullptr : o.mean.f32(),
                          .reciprocal = o.reciprocal.f32()});
  };
  const auto backward = [&](KernelSet& kernels, const NormOperands& o) {
    kernels.norm_backward({.kind = kind,
                           .x_shape = rows,
                           .dy_shape = rows,
                           .dx_shape = rows,
                           .x = o.sum.ref(),
                           .weight = o.weight.ref(),
                           .dy = o.dy.ref(),
                           .mean = rms ? nullptr : o.mean.f32(),
                           .reciprocal = o.reciprocal.f32(),
                           .dresidual = o.dresidual.ref(),
                           .dx = o.dx.ref(),
                           .dweight = o.dweight.f32(),
                           .dbias = rms ? nullptr : o.dbias.f32()});
  };
  KernelSet& kernels = bench.kernels(dtype, model.shape);
  const std::string name = rms ? "rms norm" : "layer norm";
  KernelCase c{.operation = name + " forward",
               .dtype = dtype,
               .shape = {{"tokens", tokens}, {"hidden", hidden}},
               .work = 4.0 * static_cast<double>(tokens * hidden) * static_cast<double>(size_of(dtype))};
  c.run = [&] { forward(kernels, ours); };
  c.check = [&] {
    forward(bench.reference(), want);
    bench.compare("the sum", all_of(want.sum), all_of(ours.sum), {2e-6});
    bench.compare("y", all_of(want.y), all_of(ours.y), {2e-6});
    bench.compare("the reciprocal", all_of(want.reciprocal), all_of(ours.reciprocal), {2e-6});
  };
  bench.add(model, c);
  c.operation = name + " backward";
  c.run = [&] { backward(kernels, ours); };
  c.check = [&] {
    backward(bench.reference(), want);
    bench.compare("dx", all_of(want.dx), all_of(ours.dx), {1e-5});
    bench.compare("dweight", all_of(want.dweight), all_of(ours.dweight), {1e-5});
    if (!rms) bench.compare("dbias", all_of(want.dbias), all_of(ours.dbias), {1e-5});
  };
  bench.add(model, c);
}

void measure(KernelBench& bench) {
  for (const NamedModel& model : bench.models())
    for (const DType dtype : bench.dtypes()) measure_norm(bench, model, dtype);
}

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  return trainer::run_kernel_program("norm", trainer::kAbout, argc, argv, trainer::measure);
}

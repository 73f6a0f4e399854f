// The nonlinearity of the feed-forward part.
#include "support/kernel_bench.h"

namespace trainer {
namespace {

constexpr const char* kAbout =
    R"(Times SwiGLU or the tanh form of GELU, as the model has it, forward and backward. Counted: elements read and
written.)";

struct ActivationOperands {
  Values x, dy, y, dx;

  ActivationOperands(Device& device, DType dtype, int64_t count, int64_t inputs)
      : x(device, dtype, inputs * count, 1, 4),
        dy(device, dtype, count, 2),
        y(device, dtype, count),
        dx(device, dtype, inputs * count) {}
};

void measure_activation(KernelBench& bench, const NamedModel& model, DType dtype) {
  const int64_t tokens = bench.tokens(), ffn = model.shape.ffn_hidden_size, count = tokens * ffn;
  const bool gated = model.shape.gated_mlp();
  const int64_t inputs = gated ? 2 : 1;  // gate and up
  const ActivationOperands ours(bench.device(), dtype, count, inputs),
      want(host_device(), dtype, count, inputs);
  const auto forward = [&](KernelSet& kernels, const ActivationOperands& o) {
    if (gated)
      kernels.swiglu_forward(o.y.ref(), o.x.ref(), tokens, ffn);
    else
      kernels.gelu_forward(o.y.ref(), o.x.ref(), count, model.shape.gelu_exact);
  };
  const auto backward = [&](KernelSet& kernels, const ActivationOperands& o) {
    if (gated)
      kernels.swiglu_backward(o.dx.ref(), o.dy.ref(), o.x.ref(), tokens, ffn);
    else
      kernels.gelu_backward(o.dx.ref(), o.dy.ref(), o.x.ref(), count, model.shape.gelu_exact);
  };
  KernelSet& kernels = bench.kernels(dtype, model.shape);
  const double bytes = static_cast<double>(count) * static_cast<double>(size_of(dtype));
  const std::string name = gated ? "swiglu" : "gelu";
  KernelCase c{.operation = name + " forward",
               .dtype = dtype,
               .shape = {{"tokens", tokens}, {"ffn", ffn}},
               .work = bytes * static_cast<double>(inputs + 1)};
  c.run = [&] { forward(kernels, ours); };
  c.check = [&] {
    forward(bench.reference(), want);
    bench.compare("y", all_of(want.y), all_of(ours.y), {2e-6});
  };
  bench.add(model, c);
  c.operation = name + " backward";
  c.work = bytes * static_cast<double>(2 * inputs + 1);
  c.run = [&] { backward(kernels, ours); };
  c.check = [&] {
    backward(bench.reference(), want);
    bench.compare("dx", all_of(want.dx), all_of(ours.dx), {2e-6});
  };
  bench.add(model, c);
}

void measure(KernelBench& bench) {
  for (const NamedModel& model : bench.models())
    for (const DType dtype : bench.dtypes()) measure_activation(bench, model, dtype);
}

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  return trainer::run_kernel_program("activation", trainer::kAbout, argc, argv, trainer::measure);
}

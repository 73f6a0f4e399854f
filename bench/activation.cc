// The nonlinearity of the feed-forward part.
#include "support/kernel_bench.h"

namespace trainer {
namespace {

constexpr const char* kAbout =
    R"(Times SwiGLU or the tanh form of GELU, as the model has it, forward and backward. Counted: elements read and
written.)";

void measure_activation(KernelBench& bench, const NamedModel& model, DType dtype) {
  const int64_t tokens = bench.tokens(), ffn = model.shape.ffn_hidden_size, count = tokens * ffn;
  const bool gated = model.shape.gated_mlp();
  const int64_t inputs = gated ? 2 : 1;  // gate and up
  const Values x(dtype, inputs * count, 1, 4), dy(dtype, count, 2);
  const Values y(dtype, count), want_y(dtype, count), dx(dtype, inputs * count),
      want_dx(dtype, inputs * count);
  const auto forward = [&](KernelSet& kernels, const Values& out) {
    if (gated)
      kernels.swiglu_forward(out.ref(), x.ref(), tokens, ffn);
    else
      kernels.gelu_forward(out.ref(), x.ref(), count, model.shape.gelu_exact);
  };
  const auto backward = [&](KernelSet& kernels, const Values& out) {
    if (gated)
      kernels.swiglu_backward(out.ref(), dy.ref(), x.ref(), tokens, ffn);
    else
      kernels.gelu_backward(out.ref(), dy.ref(), x.ref(), count, model.shape.gelu_exact);
  };
  KernelSet& kernels = bench.kernels(dtype, model.shape);
  const double bytes = static_cast<double>(count) * static_cast<double>(size_of(dtype));
  const std::string name = gated ? "swiglu" : "gelu";
  KernelCase c{.operation = name + " forward",
               .dtype = dtype,
               .shape = {{"tokens", tokens}, {"ffn", ffn}},
               .work = bytes * static_cast<double>(inputs + 1)};
  c.run = [&] { forward(kernels, y); };
  c.check = [&] {
    forward(bench.reference(), want_y);
    bench.compare("y", all_of(want_y), all_of(y), {2e-6});
  };
  bench.add(model, c);
  c.operation = name + " backward";
  c.work = bytes * static_cast<double>(2 * inputs + 1);
  c.run = [&] { backward(kernels, dx); };
  c.check = [&] {
    backward(bench.reference(), want_dx);
    bench.compare("dx", all_of(want_dx), all_of(dx), {2e-6});
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

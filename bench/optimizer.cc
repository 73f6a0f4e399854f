// The optimizer's update, and the squares of the gradient.
#include <algorithm>

#include "support/kernel_bench.h"

namespace trainer {
namespace {

constexpr const char* kAbout =
    R"(Times AdamW on the matrices of a block, with fp32 master weights and moments and working weights of the dtype, and
the sums of the gradient's squares that clipping needs. Counted: 28 bytes an element for fp32, whose working weights
are the master, 30 for bf16; 4 for the squares. --tokens has no say here.)";

struct OptimizerState {
  Values master, moment1, moment2, gradient, working;

  OptimizerState(Device& device, DType dtype, int64_t count)
      : master(device, DType::kF32, count, 1),
        moment1(device, DType::kF32, count, 2, 0.1),
        moment2(device, DType::kF32, count, 3, 0.1),
        gradient(device, DType::kF32, count, 4, 100),
        working(device, dtype, dtype == DType::kF32 ? 0 : count) {
    change_on_host(device.compute(), moment2.f32(), static_cast<size_t>(count), [](std::span<float> values) {
      for (float& value : values) value *= value;
    });
  }
  // Of `count` elements from `first` on.
  AdamW arguments(int64_t first, int64_t count) const {
    return {.count = count,
            .master = master.f32() + first,
            .moment1 = moment1.f32() + first,
            .moment2 = moment2.f32() + first,
            .working = working.size() == 0 ? Ref{} : working.ref().at(first),
            .gradient = gradient.f32() + first,
            .gradient_scale = 0.01F,
            .learning_rate = 1e-4F,
            .beta1 = 0.9F,
            .beta2 = 0.95F,
            .epsilon = 1e-8F,
            .weight_decay = 0.1F,
            .step = 10};
  }
};

void measure_update(KernelBench& bench, const NamedModel& model, DType dtype) {
  const int64_t count = block_elements(model.shape);
  const OptimizerState ours(bench.device(), dtype, count);
  KernelSet& kernels = bench.kernels(dtype, model.shape);
  KernelCase c{.operation = "adamw", .dtype = dtype, .shape = {{"elements", count}}};
  c.work = static_cast<double>(count) * (dtype == DType::kF32 ? 28 : 30);
  c.run = [&] { kernels.adamw(ours.arguments(0, count)); };
  c.check = [&] {
    // Each element is updated by itself: the first and the last ones stand for all.
    const int64_t slice = std::min<int64_t>(count / 2, 10000);
    const OptimizerState want(host_device(), dtype, count);
    for (const int64_t first : {int64_t{0}, count - slice}) {
      bench.reference().adamw(want.arguments(first, slice));
      const auto part = [&](const Values& v) { return Rows{v.ref().at(first), 1, slice, slice}; };
      bench.compare("the master", part(want.master), part(ours.master), {1e-6});
      bench.compare("the first moment", part(want.moment1), part(ours.moment1), {1e-6});
      bench.compare("the second moment", part(want.moment2), part(ours.moment2), {1e-6});
      if (ours.working.size() > 0)
        bench.compare("the working weights", part(want.working), part(ours.working), {1e-6});
    }
  };
  bench.add(model, c);
}

void measure_squares(KernelBench& bench, const NamedModel& model) {
  const int64_t count = block_elements(model.shape);
  const Values gradient(bench.device(), DType::kF32, count, 1);
  const auto blocks = static_cast<size_t>((count + KernelSet::kNormBlock - 1) / KernelSet::kNormBlock);
  const DeviceMemoryPtr sums = bench.device().allocate(blocks * sizeof(double));
  KernelSet& kernels = bench.kernels(DType::kF32, model.shape);
  KernelCase c{.operation = "squares", .dtype = DType::kF32, .shape = {{"elements", count}}};
  c.work = static_cast<double>(count) * 4;
  c.run = [&] { kernels.block_squares(elements_of<double>(sums), gradient.f32(), count); };
  c.check = [&] {
    std::vector<double> want(blocks);
    bench.reference().block_squares(want.data(), gradient.on_host().f32(), count);
    std::vector<float> wanted(want.begin(), want.end()), found;
    read_on_host(bench.device().compute(), elements_of<double>(sums), blocks,
                 [&](std::span<const double> ours) { found.assign(ours.begin(), ours.end()); });
    const auto row = [](const std::vector<float>& v) {
      return Rows{ref(v.data()), 1, std::ssize(v), std::ssize(v)};
    };
    bench.compare_on_host("the sums", row(wanted), row(found), {1e-6});
  };
  bench.add(model, c);
}

void measure(KernelBench& bench) {
  for (const NamedModel& model : bench.models()) {
    for (const DType dtype : bench.dtypes()) measure_update(bench, model, dtype);
    measure_squares(bench, model);
  }
}

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  return trainer::run_kernel_program("optimizer", trainer::kAbout, argc, argv, trainer::measure);
}

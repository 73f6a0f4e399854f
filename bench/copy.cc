// Operations that only move, convert or add.
#include "support/kernel_bench.h"

namespace trainer {
namespace {

constexpr const char* kAbout =
    R"(Times copies, conversions between fp32 and bf16, the gathering of rows out of wider ones, additions and zeroing, on
activations of [tokens, hidden] and [tokens, feed-forward width]. Counted: elements read and written.)";

// One operation on `count` elements; `bytes` of each move.
struct Movement {
  std::string name;
  int64_t bytes;
  DType to;
  std::function<void(KernelSet&, Ref to, ConstRef from)> run;
};

void measure_movements(KernelBench& bench, const NamedModel& model, DType dtype, int64_t columns) {
  const int64_t rows = bench.tokens(), count = rows * columns, stride = columns + columns / 2;
  const Values from(bench.device(), dtype, rows * stride, 1), read = from.on_host();
  const auto size = static_cast<int64_t>(size_of(dtype));
  const DType other = dtype == DType::kF32 ? DType::kBF16 : DType::kF32;
  KernelSet& kernels = bench.kernels(dtype, model.shape);
  const Movement movements[] = {
      {"copy", 2 * size, dtype, [&](KernelSet& k, Ref to, ConstRef x) { k.convert(to, x, count); }},
      {std::string("to ") + name_of(other), 6, other,
       [&](KernelSet& k, Ref to, ConstRef x) { k.convert(to, x, count); }},
      {"rows of wider ones", 2 * size, dtype,
       [&](KernelSet& k, Ref to, ConstRef x) { k.convert_rows(to, columns, x, stride, rows, columns); }},
      {"add", 3 * size, dtype, [&](KernelSet& k, Ref to, ConstRef x) { k.add(to, x, count); }},
      {"zero", size, dtype,
       [&](KernelSet& k, Ref to, ConstRef) { k.fill_zero(to.data, static_cast<size_t>(count * size)); }}};
  for (const Movement& m : movements) {
    const Values ours(bench.device(), m.to, count, 2), want(host_device(), m.to, count, 2);
    KernelCase c{.operation = m.name, .dtype = dtype, .shape = {{"rows", rows}, {"columns", columns}}};
    c.work = static_cast<double>(count * m.bytes);
    c.run = [&] { m.run(kernels, ours.ref(), from.ref()); };
    c.check = [&] {
      m.run(bench.reference(), want.ref(), read.ref());
      bench.compare("the result", all_of(want), all_of(ours), {1e-6});
    };
    bench.add(model, c);
  }
}

void measure(KernelBench& bench) {
  for (const NamedModel& model : bench.models())
    for (const DType dtype : bench.dtypes())
      for (const int64_t columns : {model.shape.hidden_size, model.shape.ffn_hidden_size})
        measure_movements(bench, model, dtype, columns);
}

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  return trainer::run_kernel_program("copy", trainer::kAbout, argc, argv, trainer::measure);
}

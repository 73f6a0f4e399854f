// Rotary positions of queries and keys.
#include "model/rope.h"

#include <numeric>

#include "base/error.h"
#include "support/kernel_bench.h"

namespace trainer {
namespace {

constexpr const char* kAbout =
    R"(Times rotary positions of a block's queries and keys, out of the projection's rows into rows of their own, and the
inverse rotation of backward. Counted: elements in and out, and the tables of cosines and sines once.)";

struct RopeBench {
  const ModelConfig& shape;
  int64_t tokens;
  int64_t table_elements;  // of cosines and sines together
  DeviceMemoryPtr tables, positions;

  RopeBench(Device& device, const ModelConfig& shape, int64_t tokens) : shape(shape), tokens(tokens) {
    const std::vector<float> values = make_rope_tables(shape, tokens);
    table_elements = std::ssize(values);
    tables = placed(device, values);
    std::vector<int32_t> ascending(static_cast<size_t>(tokens));
    std::iota(ascending.begin(), ascending.end(), 0);
    positions = placed(device, ascending);
  }
  RopeArguments arguments(int64_t heads, int64_t in_stride, bool inverse) const {
    return {.tokens = tokens,
            .heads = heads,
            .head_dim = shape.head_dim,
            .in_stride = in_stride,
            .out_stride = heads * shape.head_dim,
            .positions = elements_of<int32_t>(positions),
            .cosine = elements_of<float>(tables),
            .sine = elements_of<float>(tables) + table_elements / 2,
            .inverse = inverse};
  }
};

void measure_rope(KernelBench& bench, const NamedModel& model, DType dtype) {
  const RopeBench rope(bench.device(), model.shape, bench.tokens()),
      on_host(host_device(), model.shape, bench.tokens());
  const int64_t width = model.shape.q_width() + 2 * model.shape.kv_width();
  const Values projected(bench.device(), dtype, rope.tokens * width, 1), read = projected.on_host();
  KernelSet& kernels = bench.kernels(dtype, model.shape);
  for (const bool inverse : {false, true})
    for (const bool keys : {false, true}) {
      const int64_t heads = keys ? model.shape.num_query_groups : model.shape.num_attention_heads;
      const int64_t elements = rope.tokens * heads * model.shape.head_dim;
      const Values ours(bench.device(), dtype, elements), want(host_device(), dtype, elements);
      const RopeArguments arguments = rope.arguments(heads, width, inverse);
      const int64_t first = keys ? model.shape.q_width() : 0;
      KernelCase c{.operation = std::string(keys ? "keys" : "queries") + (inverse ? " backward" : " forward"),
                   .dtype = dtype,
                   .shape = {{"tokens", rope.tokens}, {"heads", heads}, {"head_dim", model.shape.head_dim}},
                   .work = 2.0 * static_cast<double>(elements) * static_cast<double>(size_of(dtype)) +
                           4.0 * static_cast<double>(rope.table_elements)};
      c.run = [&] { kernels.rope(ours.ref(), projected.ref().at(first), arguments); };
      c.check = [&] {
        bench.reference().rope(want.ref(), read.ref().at(first), on_host.arguments(heads, width, inverse));
        bench.compare("the rotated rows", all_of(want), all_of(ours), {2e-6});
      };
      bench.add(model, c);
    }
}

void measure(KernelBench& bench) {
  bool any = false;
  for (const NamedModel& model : bench.models()) {
    if (!model.shape.rope()) continue;
    any = true;
    for (const DType dtype : bench.dtypes()) measure_rope(bench, model, dtype);
  }
  if (!any) input_error("--model {}: it has no rotary positions", bench.models().front().name);
}

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  return trainer::run_kernel_program("rope", trainer::kAbout, argc, argv, trainer::measure);
}

#include "app/loaded_model.h"

#include <algorithm>

#include "base/error.h"

namespace trainer {

LoadedModel load_model(const ModelSource& source, KernelSet& kernels, DType dtype, int64_t positions) {
  LoadedModel loaded{Model(source.config(), positions), {}, {}};
  const Model& model = loaded.model;
  source.check(parameters_of(model));

  constexpr size_t kAlignment = 64;
  std::vector<size_t> offsets;
  size_t total = 0;
  int64_t largest = 0;
  for (int i = 0; i < model.layer_count(); ++i) {
    const int64_t elements = model.layer(i).block_size();
    offsets.push_back(total);
    total += (static_cast<size_t>(elements) * size_of(dtype) + kAlignment - 1) / kAlignment * kAlignment;
    largest = std::max(largest, elements);
  }
  loaded.memory = Arena(total);
  Arena staging(dtype == DType::kF32 ? 0 : static_cast<size_t>(largest) * sizeof(float));
  for (int i = 0; i < model.layer_count(); ++i) {
    const Layer& layer = model.layer(i);
    const Ref block{loaded.memory.bytes().data() + offsets[static_cast<size_t>(i)], dtype};
    const auto elements = static_cast<size_t>(layer.block_size());
    if (dtype == DType::kF32) {
      read_layer(source, layer, {block.f32(), elements});
    } else {
      // Bytes of earlier layers left in the padding do no harm: no operation reads it.
      auto* values = reinterpret_cast<float*>(staging.bytes().data());
      read_layer(source, layer, {values, elements});
      kernels.convert(block, ref(values), layer.block_size());
    }
    loaded.weights.push_back(block);
  }
  return loaded;
}

}  // namespace trainer

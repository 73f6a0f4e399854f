#include "app/kernels.h"

#include "base/error.h"
#include "dsp/dsp_kernels.h"

namespace trainer {

std::unique_ptr<KernelSet> make_kernels(const DeviceSection& device) {
  switch (device.kind) {
    case DeviceKind::kHost:
      return make_host_kernels(static_cast<int>(device.threads));
    case DeviceKind::kCuda:
      input_error("key 'device.kind' is \"cuda\", but only training runs there; set it to \"host\"");
    case DeviceKind::kMt3000Simulated:
      return std::make_unique<DspKernels>();
  }
  require(false, "device kind {} has no kernels", static_cast<int>(device.kind));
  return nullptr;
}

std::vector<GemmShape> feed_forward_products(const ModelConfig& model, int64_t tokens) {
  return {{tokens, model.ffn_hidden_size * (model.gated_mlp() ? 2 : 1), model.hidden_size},
          {tokens, model.hidden_size, model.ffn_hidden_size}};
}

bool is_simulated(const DeviceSection& device) { return device.kind == DeviceKind::kMt3000Simulated; }

Json counted_cycles(const KernelSet& kernels) {
  const auto* simulated = dynamic_cast<const DspKernels*>(&kernels);
  if (!simulated) return nullptr;
  Json operations = Json::object();
  for (const auto& [name, count] : simulated->counts())
    operations[name] = {{"calls", count.calls},
                        {"cycles", count.cycles},
                        {"compute_cycles", count.compute_cycles},
                        {"ddr_bytes", count.ddr_bytes}};
  return {{"device", simulated->name()},
          {"cycles", simulated->cycles()},
          {"seconds", simulated->machine().seconds(simulated->cycles())},
          {"operations", std::move(operations)}};
}

}  // namespace trainer

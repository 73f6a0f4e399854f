#include "app/cycle_profile.h"

#include <sys/mman.h>

#include "app/training_rank.h"
#include "base/error.h"
#include "dsp/dsp_kernels.h"
#include "schedule/passes.h"

namespace trainer {
namespace {

// Addresses that nothing may be read from or written to, for kernels that only count.
class Addresses {
 public:
  Addresses() {
    map_ = ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map_ == MAP_FAILED) run_error("cannot reserve addresses to count cycles with");
  }
  ~Addresses() { ::munmap(map_, kBytes); }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;

  std::byte* take(int64_t bytes) {
    std::byte* begin = static_cast<std::byte*>(map_) + used_;
    used_ += (static_cast<size_t>(bytes) + 63) / 64 * 64;
    require(used_ <= kBytes, "a layer is larger than the addresses reserved for it");
    return begin;
  }
  Ref floats(int64_t bytes) { return {take(bytes), DType::kF32}; }

 private:
  static constexpr size_t kBytes = size_t{1} << 40;
  void* map_ = nullptr;
  size_t used_ = 0;
};

class LayerCounter {
 public:
  LayerCounter(const Config& config, const Model& model)
      : model_(model),
        micro_batch_(config.training.micro_batch_size),
        sequence_(config.data.sequence_length),
        problem_(make_problem(config, model, kernels_, {0})),
        graph_(build_step_graph(problem_)),
        tokens_(static_cast<size_t>(micro_batch_ * sequence_)) {
    for (size_t t = 0; t < tokens_.size(); ++t)
      positions_.push_back(static_cast<int32_t>(t % static_cast<size_t>(sequence_)));
  }

  MeasuredLayer count(int index) {
    const Layer& layer = model_.layer(index);
    const LayerCatalogue& c = problem_.layers[static_cast<size_t>(index)];
    const bool first = index == 0, last = index + 1 == model_.layer_count();
    Addresses addresses;
    std::vector<Ref> saved;
    for (const SavedTensor& tensor : c.saved) saved.push_back(addresses.floats(tensor.bytes));
    LayerCall call = make_call(addresses, c);
    call.saved = saved;
    // What it is handed and hands on: as many bytes as its neighbour's.
    const int64_t bytes = problem_.layers.front().output_bytes;
    const Ref x = first ? Ref{} : addresses.floats(bytes), y = last ? Ref{} : addresses.floats(bytes),
              dy = last ? Ref{} : addresses.floats(bytes), dx = first ? Ref{} : addresses.floats(bytes);

    MeasuredLayer m;
    m.shape = shape_of(c, static_cast<int64_t>(size_of(DType::kF32)), false);
    m.forward_seconds = seconds([&] { layer.forward(call, x, y); });
    m.backward_seconds = seconds([&] { layer.backward(call, x, dy, dx); });
    LayerCall first_call = call;
    const auto begins = [&](TaskKind kind) {
      first_call.first_gradients = is_first(kind, index, Role::kGradient);
      first_call.first_shared_gradients = is_first(kind, index, Role::kSharedGradient);
    };
    begins(TaskKind::kForward);
    m.first_forward_seconds = seconds([&] { layer.forward(first_call, x, y); });
    begins(TaskKind::kBackward);
    m.first_backward_seconds = seconds([&] { layer.backward(first_call, x, dy, dx); });
    if (!c.saved.empty()) m.recover_seconds = seconds([&] { layer.recover(call, x); });
    m.update_seconds = seconds([&] {
      for (const ParameterSpec& p : layer.parameters()) {
        AdamW a{};
        a.count = p.count();
        kernels_.adamw(a);
      }
    });
    m.norm_seconds = seconds([&] {
      for (const ParameterSpec& p : layer.parameters()) kernels_.block_squares(nullptr, nullptr, p.count());
    });
    return m;
  }

 private:
  LayerCall make_call(Addresses& addresses, const LayerCatalogue& c) {
    constexpr int64_t kFloat = sizeof(float);
    const int64_t shared = kFloat * problem_.layers.front().parameters;
    LayerCall call{.kernels = kernels_,
                   .batch = {.micro_batch = micro_batch_,
                             .sequence = sequence_,
                             .tokens = tokens_.data(),
                             .labels = tokens_.data(),
                             .positions = positions_.data(),
                             .document_starts = {}},
                   .weights = addresses.floats(kFloat * c.parameters),
                   .shared_weights = addresses.floats(shared),
                   .saved = {},
                   .temporary = {}};
    call.gradients = addresses.floats(kFloat * c.parameters).f32();
    call.shared_gradients = addresses.floats(shared).f32();
    call.temporary = {addresses.take(c.temporary_bytes), static_cast<size_t>(c.temporary_bytes)};
    return call;
  }

  // Whether the first micro-batch's task is the first to add to these gradients.
  bool is_first(TaskKind kind, int layer, Role role) const {
    for (const Task& task : graph_.tasks) {
      if (task.kind != kind || task.at.layer_begin != layer || task.at.micro_batch != 0) continue;
      const Use* use = graph_.find(task, role);
      return use && use->access == Access::kWrite;
    }
    return false;
  }

  template <class Body>
  double seconds(Body&& body) {
    const int64_t before = kernels_.cycles();
    body();
    return kernels_.machine().seconds(kernels_.cycles() - before);
  }

  const Model& model_;
  int64_t micro_batch_, sequence_;
  DspKernels kernels_{false};
  Problem problem_;
  StepGraph graph_;
  std::vector<int32_t> tokens_, positions_;
};

}  // namespace

LayerProfile count_layers(const Config& config, const ModelConfig& model) {
  Config one = profiled_program(config, 1);
  ModelConfig few = model;
  few.num_layers = 1;
  resolve_parallel(one, few, 1);
  one.schedule.activation = ActivationPolicy::kFullSave;
  const Model whole(few, config.data.sequence_length);
  LayerCounter counter(one, whole);
  LayerProfile profile;
  for (int layer = 0; layer < whole.layer_count(); ++layer) profile.layers.push_back(counter.count(layer));
  return profile;
}

Platform simulated_platform(std::vector<MeasuredLayer> layers) {
  const dsp::Machine machine;
  Platform p = read_platform("mt3000");
  p.name = "mt3000-simulated";
  p.source =
      "Simulated: cycles of the layers were counted on a model of one cluster (docs/results/dsp.md), none "
      "was "
      "measured. All but the layers and the rates of products and DDR is the platform mt3000's: " +
      p.source;
  p.device_source =
      "Simulated: rates of the model of one cluster; efficiency is what the counted blocks reach. fp32 "
      "stands for "
      "products in fp16, and activations count 4 bytes an element where they are sent. memory_bytes is the "
      "platform mt3000's.";
  p.counts_multiply_adds = true;
  p.matmul_per_second = {{name_of(DType::kF32), machine.peak_macs_per_second}};
  p.memory_bytes_per_second = machine.ddr_bytes_per_second;
  p.measured = std::move(layers);
  set_efficiencies(p);
  return p;
}

}  // namespace trainer

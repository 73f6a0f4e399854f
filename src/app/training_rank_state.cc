// What a rank's state is set from, and what a checkpoint takes of it.
#include <algorithm>

#include "app/training_rank.h"
#include "base/error.h"
#include "base/on_threads.h"
#include "device/arena.h"
#include "schedule/shards.h"

namespace trainer {
namespace {

constexpr int64_t kInitializedAtOnce = int64_t{1} << 18;  // elements, by one thread

// The part of a parameter that lies in what a rank updates of its layer.
struct HeldPart {
  int64_t begin = 0;     // in the parameter
  int64_t count = 0;     // 0: none of it
  int64_t position = 0;  // of its first element in the rank's state
};

HeldPart held_part(const ParameterSpec& p, ShardRange range) {
  const int64_t begin = std::max(p.offset, range.begin);
  const int64_t end = std::min(p.offset + p.count(), range.end());
  return {begin - p.offset, std::max<int64_t>(end - begin, 0), begin - range.begin};
}

}  // namespace

int64_t TrainingRank::threads() const { return std::max<int64_t>(1, config_.device.threads); }

void TrainingRank::initialize_random() {
  const auto seed = static_cast<uint64_t>(config_.training.seed);
  for (const OwnedBlock& block : binder_->blocks(graph_))
    for (const ParameterSpec& parameter : model_.layer(block.layer).parameters()) {
      const HeldPart part = held_part(parameter, block.range);
      write_on_host(
          backend_.device->compute(), block.master + part.position, static_cast<size_t>(part.count),
          [&](std::span<float> values) {
            pieces_on_threads(threads(), part.count, kInitializedAtOnce, [&](int64_t begin, int64_t end) {
              initialize_held(parameter, seed, part.begin + begin,
                              values.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
            });
          });
    }
  refresh_working_weights();
}

void TrainingRank::initialize_from(const ModelSource& source) {
  read_weights(source);
  refresh_working_weights();
}

void TrainingRank::read_weights(const ModelSource& source) {
  DeviceQueue& queue = backend_.device->compute();
  Arena memory;  // of a layer that is not all of it updated here
  for (const OwnedBlock& block : binder_->blocks(graph_)) {
    const Layer& layer = model_.layer(block.layer);
    const auto size = static_cast<size_t>(layer.block_size());
    if (block.range.begin == 0 && block.range.end() == layer.block_size()) {
      write_on_host(queue, block.master, size,
                    [&](std::span<float> values) { read_layer(source, layer, values, threads()); });
      continue;
    }
    if (memory.bytes().size() < size * sizeof(float)) memory = Arena(size * sizeof(float));
    const std::span values(reinterpret_cast<float*>(memory.bytes().data()), size);
    std::ranges::fill(values, 0.0F);
    read_layer(source, layer, values, threads());
    queue.copy_in(block.master, values.data() + block.range.begin,
                  static_cast<size_t>(block.range.count) * sizeof(float));
    queue.synchronise();
  }
}

void TrainingRank::read_state(const CheckpointReader& checkpoint) {
  struct Wanted {
    const ParameterSpec* parameter;
    HeldPart part;
    std::string name;
    float* state;
  };
  std::vector<Wanted> all;  // in the order in which they were written
  for (const OwnedBlock& block : binder_->blocks(graph_))
    for (const ParameterSpec& p : model_.layer(block.layer).parameters()) {
      const std::vector<int64_t>* shape = checkpoint.shape(p.name);
      if (!shape || *shape != p.shape)
        input_error("{}: parameter '{}' of shape {} is not in the checkpoint",
                    checkpoint.directory().string(), p.name, describe_shape(p.shape));
      const HeldPart part = held_part(p, block.range);
      all.push_back({&p, part, p.name, block.master});
      all.push_back({&p, part, p.name + ".moment1", block.moment1});
      all.push_back({&p, part, p.name + ".moment2", block.moment2});
    }
  DeviceQueue& queue = backend_.device->compute();
  // One thread is left to whoever verifies the checkpoint meanwhile.
  on_threads(queue.host_reaches() ? threads() - 1 : 1, std::ssize(all), [&](int64_t i) {
    const auto& [parameter, part, name, state] = all[static_cast<size_t>(i)];
    write_on_host(
        queue, state + part.position, static_cast<size_t>(part.count), [&](std::span<float> values) {
          for_each_held_run(*parameter, part.begin, part.count, [&](int64_t from, int64_t to, int64_t count) {
            checkpoint.read(name, from,
                            values.subspan(static_cast<size_t>(to - part.begin), static_cast<size_t>(count)));
          });
        });
  });
  binder_->set_updates_done(
      json_integer(checkpoint.state(), "updates_done", checkpoint.directory().string()));
}

void TrainingRank::refresh_working_weights() { binder_->refresh_working_weights(graph_); }

std::vector<PartTensor> TrainingRank::checkpoint_tensors() {
  std::vector<PartTensor> tensors;
  if (problem_.sharding() == 0 && problem_.replica_of(world_.rank()) != 0) return tensors;
  for (const OwnedBlock& block : binder_->blocks(graph_)) {
    if (block.copy) continue;
    for (const ParameterSpec& p : model_.layer(block.layer).parameters()) {
      const HeldPart part = held_part(p, block.range);
      if (part.count == 0 || (p.replicated() && problem_.tensor_of(world_.rank()) != 0)) continue;
      const auto add = [&](const std::string& name, const float* state) {
        const float* values = state + part.position;
        std::shared_ptr<const std::vector<float>> copy;
        if (!backend_.device->host_reaches()) {
          copy = std::make_shared<const std::vector<float>>(copy_to_host(values, part.count));
          values = copy->data();
        }
        for (const HeldPiece& piece : held_pieces(p, part.begin, part.count)) {
          const int64_t count = piece.length * piece.runs;
          tensors.push_back({{name, p.shape, {piece.begin, count, piece.length, piece.stride}},
                             {values + piece.offset - part.begin, static_cast<size_t>(count)},
                             copy});
        }
      };
      add(p.name, block.master);
      add(p.name + ".moment1", block.moment1);
      add(p.name + ".moment2", block.moment2);
    }
  }
  return tensors;
}

int64_t TrainingRank::checkpoint_bytes() const {
  const int rank = world_.rank(), replica = problem_.replica_of(rank);
  if (problem_.sharding() == 0 && replica != 0) return 0;
  const auto stage = static_cast<size_t>(problem_.stage_of(rank));
  int64_t elements = 0;
  for (int l = problem_.first_layer[stage]; l < problem_.first_layer[stage + 1]; ++l) {
    const ShardRange range = problem_.sharding() > 0 ? shard_range(problem_.layers[static_cast<size_t>(l)],
                                                                   problem_.replicas, replica)
                                                     : ShardRange{0, model_.layer(l).block_size()};
    for (const ParameterSpec& p : model_.layer(l).parameters())
      if (!p.replicated() || problem_.tensor_of(rank) == 0) elements += held_part(p, range).count;
  }
  return elements * 3 * static_cast<int64_t>(sizeof(float));  // the parameter and its two moments
}

std::vector<float> TrainingRank::copy_to_host(const float* values, int64_t count) const {
  std::vector<float> copy(static_cast<size_t>(count));
  DeviceQueue& queue = backend_.device->compute();
  queue.copy_out(copy.data(), values, copy.size() * sizeof(float));
  queue.synchronise();
  return copy;
}

std::optional<std::vector<float>> TrainingRank::parameter_values(const std::string& name) const {
  for (int l = 0; l < model_.layer_count(); ++l)
    for (const ParameterSpec& p : model_.layer(l).parameters())
      if (const float* values = p.name == name ? parameter(name) : nullptr)
        return copy_to_host(values, p.count());
  return std::nullopt;
}

const float* TrainingRank::parameter(const std::string& name) const {
  for (const OwnedBlock& block : binder_->blocks(graph_))
    for (const ParameterSpec& p : model_.layer(block.layer).parameters()) {
      if (p.name != name) continue;
      const HeldPart part = held_part(p, block.range);
      if (part.count == p.count()) return block.master + part.position;
      if (block.whole && block.whole.dtype == DType::kF32) return block.whole.f32() + p.offset;
    }
  return nullptr;
}

}  // namespace trainer

#include "plan/memory_model.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "schedule/passes.h"

namespace trainer {
namespace {

// What a use says that its buffer is; kWorkspace: nothing in particular.
MemoryClass class_of(const Use& use, const Buffer& buffer) {
  switch (use.role) {
    case Role::kWeights:
    case Role::kSharedWeights:
      return MemoryClass::kWeights;
    case Role::kGradient:
    case Role::kSharedGradient:
      return MemoryClass::kGradients;
    case Role::kMaster:
      return MemoryClass::kMaster;
    case Role::kMoment1:
    case Role::kMoment2:
      return MemoryClass::kMoments;
    case Role::kSaved:
      return buffer.tier == Tier::kShort ? MemoryClass::kRecovery : MemoryClass::kActivations;
    case Role::kInput:
    case Role::kOutput:
      return buffer.tier == Tier::kMedium ? MemoryClass::kActivations : MemoryClass::kStaging;
    default:
      return MemoryClass::kWorkspace;
  }
}

// The least of its uses' classes: weights that are their own master copy are weights.
std::vector<MemoryClass> classify(const StepGraph& graph) {
  std::vector<MemoryClass> classes(graph.buffers.size(), MemoryClass::kWorkspace);
  for (const Task& task : graph.tasks)
    for (const Use& use : task.uses) {
      const auto b = static_cast<size_t>(use.buffer);
      const bool exchanges = use.role == Role::kTemporary && task.kind == TaskKind::kGradSync;
      classes[b] = std::min(classes[b], exchanges ? MemoryClass::kStaging : class_of(use, graph.buffers[b]));
    }
  for (size_t b = 0; b < graph.buffers.size(); ++b)
    if (graph.buffers[b].name == "tensor exchange") classes[b] = MemoryClass::kStaging;
  return classes;
}

// How many micro-batches a stage holds together with all its gradients: those of the weights are first
// written when the first micro-batch is given up.
int in_flight(const Problem& problem, int stage) {
  return std::min(problem.stages - stage, problem.micro_batches - 1);
}

}  // namespace

const char* name_of(MemoryClass memory_class) {
  constexpr const char* kNames[kMemoryClassCount] = {"weights",     "gradients", "master",  "moments",
                                                     "activations", "recovery",  "staging", "workspace"};
  return kNames[static_cast<size_t>(memory_class)];
}

StageMemory memory_of(const StepGraph& graph, int rank, int stage) {
  StageMemory memory;
  memory.stage = stage;
  memory.tiers = arena_bytes(graph, rank);
  const auto classes = classify(graph);
  for (const auto& buffers : in_use_when_fullest(graph, rank))
    for (const BufferId b : buffers) {
      const Buffer& buffer = graph.buffers[static_cast<size_t>(b)];
      memory.classes[static_cast<size_t>(classes[static_cast<size_t>(b)])] +=
          graph.slot_bytes(buffer) * buffer.versions;
    }
  return memory;
}

Problem shortened(Problem problem) {
  // Warm-up, a few in the steady state, and the end, which uses no more than that.
  if (problem.virtual_ranks == 1)
    problem.micro_batches = std::min(problem.micro_batches, 2 * problem.stages + 4);
  return problem;
}

StageMemory stage_memory(const Problem& problem, int stage) {
  Problem one = shortened(problem);
  if (one.virtual_ranks == 1)
    one.micro_batches = std::min(problem.micro_batches, 2 * (problem.stages - stage) + 4);
  const int rank = one.rank_of(stage, 0);
  one.ranks = {rank};
  return memory_of(build_step_graph(one), rank, stage);
}

StageMemory fullest_stage(const Problem& problem) {
  StageMemory fullest;
  for (int s = 0; s < problem.stages; ++s)
    if (const StageMemory memory = stage_memory(problem, s); memory.total() > fullest.total())
      fullest = memory;
  return fullest;
}

int64_t least_stage_memory(const Problem& problem, int stage) {
  const int first = problem.first_layer[static_cast<size_t>(stage)],
            end = problem.first_layer[static_cast<size_t>(stage) + 1];
  const int sharding = problem.sharding(), head = problem.layer_count() - 1;
  const int64_t element = problem.element_bytes;
  const bool shards = problem.shard_gradients && sharding >= 2, separate = element != 4;
  int64_t state = 0, activations = 0, moving = 0, temporary = 0;
  const auto count = [&](int64_t parameters) {
    // Shards are cut between norm blocks, so the smallest may be a block short.
    const int64_t own =
        sharding > 0 ? std::max<int64_t>(parameters / problem.replicas - kNormBlock, 0) : parameters;
    state += (sharding == 3 ? own : parameters) * element;
    state += (shards ? own : parameters) * problem.gradient_bytes;
    state += own * (separate ? 12 : 8);
  };
  for (int l = first; l < end; ++l) {
    const LayerCatalogue& layer = problem.layers[static_cast<size_t>(l)];
    count(layer.parameters);
    int64_t missing = 0;
    for (size_t i = 0; i < layer.saved.size(); ++i)
      (problem.keeps(l, i) ? activations : missing) += layer.saved[i].bytes;
    if (l > 0) activations += problem.layers[static_cast<size_t>(l) - 1].output_bytes;
    // Together in a backward: what was recovered, the gradients of both sides, those of the weights where
    // each micro-batch has its own, and a gathered copy of the weights.
    moving = std::max(moving, missing + layer.gradient_bytes + (l < head ? layer.output_bytes : 0) +
                                  (shards ? layer.parameters * problem.gradient_bytes : 0) +
                                  (sharding == 3 ? layer.parameters * element : 0));
    temporary = std::max(temporary, layer.temporary_bytes);
  }
  if (end == problem.layer_count() && problem.tied()) {
    if (stage > 0)
      count(problem.layers[0].parameters);
    else if (!shards)
      state += problem.layers[0].parameters * problem.gradient_bytes;
  }
  return state + activations * in_flight(problem, stage) + moving + temporary + problem.workspace_bytes +
         problem.tensor_staging_bytes;
}

}  // namespace trainer

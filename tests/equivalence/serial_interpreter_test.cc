// The stage runtime against the oracle: the same programs, of all ranks, on one thread in random legal
// orders.
#include "runtime/serial_interpreter.h"

#include <gtest/gtest.h>

#include "support/tiny_grid.h"

namespace trainer {
namespace {

using testing::GridPlan;
using testing::GridResult;

// One rank without lanes of its own: memory, binder and inputs over the graph of all ranks.
struct OracleRank {
  OracleRank(const GridPlan& plan, const Config& config, const Model& model, const StepGraph& graph,
             const Problem& problem, Communicator& world)
      : kernels(make_host_kernels(1)),
        memory(graph, {}, world.rank()),
        communicators(RankCommunicators::make(world, problem)),
        inputs(testing::grid_data(plan),
               {config.training.micro_batch_size, config.training.global_batch_size, plan.replicas,
                problem.replica_of(world.rank()), problem.virtual_ranks}),
        binder({problem, world.rank(), model, *kernels, memory, communicators, inputs,
                make_optimizer_settings(config), plan.dtype}) {
    for (size_t b = 0; b < graph.buffers.size(); ++b)
      if (graph.buffers[b].name == "workspace" && graph.buffers[b].rank == world.rank())
        kernels->grant_workspace(
            {memory.address(graph, static_cast<BufferId>(b)), static_cast<size_t>(graph.buffers[b].bytes)});
    // Not by refresh_working_weights, which waits for the other ranks.
    for (const OwnedBlock& block : binder.blocks(graph)) {
      std::vector<float> values(static_cast<size_t>(model.layer(block.layer).block_size()));
      for (const ParameterSpec& p : model.layer(block.layer).parameters())
        initialize_parameter(p, static_cast<uint64_t>(config.training.seed), 0,
                             {values.data() + p.offset, static_cast<size_t>(p.count())});
      std::copy_n(values.begin() + block.range.begin, block.range.count, block.master);
      if (block.working) kernels->convert(block.working, ref(block.master), block.range.count);
      if (block.whole) kernels->convert(block.whole, ref(values.data()), static_cast<int64_t>(values.size()));
    }
  }
  std::unique_ptr<KernelSet> kernels;
  RankMemory memory;
  RankCommunicators communicators;
  SampledInputs inputs;
  TrainingBinder binder;
};

TEST(SerialInterpreter, RandomLegalOrdersGiveTheRuntimesBits) {
  for (const GridPlan& plan : [] {
         std::vector<GridPlan> plans(8);
         plans[1].stages = 3;
         plans[2].stages = 2;
         plans[2].replicas = 2;
         plans[2].micro_batches = 6;
         plans[2].activation = ActivationPolicy::kCheckpoint;
         plans[3].stages = 2;
         plans[3].micro_batches = 8;
         plans[3].reproducible_group = 4;
         plans[3].dtype = DType::kBF16;
         for (int zero = 1; zero <= 3; ++zero) {
           GridPlan& plan = plans[3 + static_cast<size_t>(zero)];
           plan.stages = 2;
           plan.replicas = 2;
           plan.micro_batches = 8;
           plan.activation = ActivationPolicy::kCheckpoint;
           plan.recovery_buffers = zero;
           plan.zero_stage = zero;
           plan.dtype = zero % 2 ? DType::kBF16 : DType::kF32;
         }
         plans[7].replicas = 2;
         plans[7].zero_stage = 2;
         plans[7].shard_gradients = true;
         plans[7].clip = 0;
         plans[7].skip_non_finite = false;
         return plans;
       }()) {
    const GridResult expected = testing::run_grid(plan);
    const Config config = testing::grid_config(plan);
    const Model model(plan.model, config.data.sequence_length);
    const auto kernels = make_host_kernels(1);
    const Problem problem = make_problem(config, model, *kernels, {});
    const StepGraph graph = build_step_graph(problem);
    for (uint64_t seed = 0; seed < 8; ++seed) {
      auto communicators = make_in_process_group(problem.world_size());
      std::vector<std::unique_ptr<OracleRank>> ranks;
      for (auto& c : communicators)
        ranks.push_back(std::make_unique<OracleRank>(plan, config, model, graph, problem, *c));
      interpret_serially(graph, plan.steps, seed,
                         [&](int rank) -> KernelBinder& { return ranks[static_cast<size_t>(rank)]->binder; });
      for (int s = 1; s <= plan.steps; ++s) {
        const StepResult got = ranks[0]->binder.take_result(s);
        EXPECT_EQ(got.loss, expected.steps[static_cast<size_t>(s) - 1].loss);
        EXPECT_EQ(got.gradient_norm, expected.steps[static_cast<size_t>(s) - 1].gradient_norm);
      }
      for (const auto& rank : ranks)
        for (const OwnedBlock& block : rank->binder.blocks(graph))
          for (const ParameterSpec& p : model.layer(block.layer).parameters()) {
            const auto& whole = expected.weights.at(p.name);
            for (int64_t i = 0; i < p.count(); ++i) {
              const int64_t at = p.offset + i - block.range.begin;
              if (at < 0 || at >= block.range.count) continue;
              ASSERT_EQ(block.master[at], whole[static_cast<size_t>(i)]) << p.name << " " << i;
            }
          }
    }
  }
}

}  // namespace
}  // namespace trainer

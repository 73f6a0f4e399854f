// The stage runtime against the oracle: the same programs, of all ranks, on one thread in random legal
// orders.
#include "runtime/serial_interpreter.h"

#include <gtest/gtest.h>

#include "support/bare_rank.h"
#include "support/thinning.h"

namespace trainer {
namespace {

using testing::BareRank;
using testing::GridPlan;
using testing::GridResult;

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
    for (uint64_t seed = 0; seed < (testing::kThinned ? 2 : 8); ++seed) {
      auto communicators = make_in_process_group(problem.world_size());
      std::vector<std::unique_ptr<BareRank>> ranks;
      for (auto& c : communicators)
        ranks.push_back(std::make_unique<BareRank>(plan, config, model, graph, problem, *c));
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

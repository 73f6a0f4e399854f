#include "plan/stream_machine.h"

#include <gtest/gtest.h>

#include "schedule/check.h"
#include "schedule/layer_stream.h"
#include "schedule/memory.h"

namespace trainer {
namespace {

constexpr int kBlocks = 12;
constexpr int64_t kBoundary = 1000;

// Blocks of 1 s forward and 2 s backward on a machine of 1,000 operations and 1,000 bytes a second.
Problem blocks(int64_t parameters) {
  Problem p;
  for (int l = 0; l < kBlocks + 2; ++l) {
    LayerCatalogue c;
    const bool end = l == 0 || l == kBlocks + 1;
    c.name = "layer " + std::to_string(l);
    c.parameters = end ? 1 : parameters;
    c.output_bytes = l == kBlocks + 1 ? 0 : kBoundary;
    c.gradient_bytes = l == 0 ? 0 : kBoundary;
    c.forward_flops = end ? 0 : 1000;
    c.backward_flops = end ? 0 : 2000;
    p.layers.push_back(c);
  }
  p.first_layer = first_layers({kBlocks});
  return p;
}

StreamMachine machine() {
  StreamMachine m;
  m.flops_per_second = m.host_to_device = m.device_to_host = 1000;
  m.storage_read = m.storage_write = 400;
  return m;
}

double simulated(const Problem& problem, const CheckpointSchedule& schedule) {
  StepGraphBuilder builder;
  layer_stream(builder, problem, {schedule});
  const StepGraph graph = place_memory(builder.build());
  for (const Diagnostic& d : check(graph)) ADD_FAILURE() << d.message;
  return simulate(graph, stream_costs(graph, problem, machine())).end;
}

TEST(StreamMachine, TheSimulationKeepsWhatThePlanPromises) {
  const Problem problem = blocks(10);
  const double least = 4.0 * kBlocks;  // forward, recovery, backward
  EXPECT_NEAR(simulated(problem, fixed_interval(kBlocks, 1)), least, 0.2);
  for (int64_t host : {0, 2, 5})
    for (int64_t storage : {0, 3}) {
      const CheckpointProblem p =
          checkpoint_problem(problem, machine(), {7 * kBoundary, host * kBoundary, storage * kBoundary});
      const CheckpointPlan plan = plan_checkpoints(p);
      ASSERT_EQ(plan.status, MilpStatus::kOptimal);
      EXPECT_EQ(plan.schedule.count(BoundaryHome::kHost), host);
      EXPECT_EQ(plan.schedule.count(BoundaryHome::kStorage), std::min(storage, kBlocks + 1 - 7 - host));
      EXPECT_NEAR(simulated(problem, plan.schedule) - least, plan.parts.recompute, 0.5)
          << host << " in host memory, " << storage << " in storage";
    }
}

TEST(StreamMachine, TheCataloguesBecomeWindows) {
  const CheckpointProblem p = checkpoint_problem(blocks(300), machine(), {4000, 2000, 1000});
  EXPECT_EQ(p.layers(), kBlocks);
  EXPECT_EQ(p.boundary_bytes, std::vector<int64_t>(kBlocks + 1, kBoundary));
  EXPECT_EQ(p.forward_seconds[0], 1.2);  // its weights take longer than its forward
  EXPECT_EQ(p.forward_to_host.spare(3), 1000);
  EXPECT_EQ(p.forward_to_device.mandatory_excess(3), 200);
  EXPECT_EQ(p.backward_to_device.spare(3), 3000 - 1200);
  EXPECT_EQ(p.backward_to_host.mandatory[3], 1200);
  EXPECT_EQ(p.backward_to_device.capacity[kBlocks], 0);
  EXPECT_EQ(p.storage_write.capacity[3], 400);
  EXPECT_EQ(p.storage_read.capacity[3], 1200);
  EXPECT_NEAR(plan_checkpoints(p).parts.mandatory_forward, 0.2 * kBlocks, 1e-9);
}

TEST(StreamMachine, AMachineWithoutStorageHasNone) {
  StreamMachine m = machine();
  m.storage_read = 0;
  EXPECT_EQ(checkpoint_problem(blocks(1), m, {4000, 2000, 1000}).storage_bytes, 0);
}

}  // namespace
}  // namespace trainer

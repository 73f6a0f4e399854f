// On a link that gradients, weights and activations share.
#include <gtest/gtest.h>

#include "support/driven_grid.h"
#include "support/slow_link.h"

namespace trainer {
namespace {

using testing::DrivenGrid;
using testing::GridPlan;
using testing::LinkedCommunicator;
using testing::SlowLink;

constexpr double kChunkBytes = 1 << 20;

struct Measured {
  DrivenGrid::Outcome outcome;
  size_t messages = 0;
  int delayed = 0;   // had anything at all before them
  double worst = 0;  // bytes
};

// Layers of several chunks, summed after each micro-batch, under transfers between stages.
Measured run_on_slow_links(std::vector<std::string> passes, double bytes_per_second) {
  GridPlan plan;
  plan.stages = 2;
  plan.replicas = 2;
  plan.micro_batches = 8;
  plan.steps = 2;
  plan.passes = std::move(passes);
  plan.zero_stage = 2;
  plan.shard_gradients = true;
  plan.model.num_layers = 2;
  plan.model.hidden_size = 256;
  plan.model.head_dim = 64;
  plan.model.ffn_hidden_size = 1536;
  plan.model.init_std = 0.02;
  std::deque<SlowLink> links;
  for (int r = 0; r < plan.world(); ++r) links.emplace_back(bytes_per_second);
  DrivenGrid::Run run;
  run.network.nodes = {0, 1, 2, 3};
  run.communicators = [&](RankCommunicators& c, int rank) {
    SlowLink& link = links[static_cast<size_t>(rank)];
    for (auto* group : {&c.data_parallel, &c.tied, &c.world, &c.boundary})
      *group = std::make_unique<LinkedCommunicator>(std::move(*group), link, group == &c.boundary);
  };
  Measured measured;
  measured.outcome = DrivenGrid(plan).run(run);
  for (const SlowLink& link : links)
    for (double bytes : link.bytes_ahead()) {
      ++measured.messages;
      measured.delayed += bytes > 0;
      measured.worst = std::max(measured.worst, bytes);
    }
  return measured;
}

// How slow a link must be for sums to be under way at a transfer depends on how fast this machine computes:
// the pass is judged on the first link on which a transfer waits, and without the pass behind more than a
// chunk.
TEST(TransferPriority, ATransferBetweenStagesWaitsBehindOneChunkAtMost) {
  auto others = pass_names();
  std::erase(others, "transfer_priority");
  for (const double bytes_per_second : {60e6, 30e6, 15e6, 7.5e6}) {
    const Measured with = run_on_slow_links(pass_names(), bytes_per_second);
    EXPECT_EQ(with.messages, 2u * 2 * 4 * 2);  // replicas, directions, micro-batches, steps
    EXPECT_LE(with.worst, kChunkBytes + 4096);
    if (with.delayed == 0) continue;
    const Measured without = run_on_slow_links(others, bytes_per_second);
    EXPECT_TRUE(with.outcome == without.outcome);
    if (without.worst <= kChunkBytes + 4096) continue;
    RecordProperty("worst_with", std::to_string(with.worst));
    RecordProperty("worst_without", std::to_string(without.worst));
    return;
  }
  FAIL() << "no link was slow enough for transfers to wait";
}

}  // namespace
}  // namespace trainer

#include "app/profile.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "app/profile_check.h"
#include "base/file.h"
#include "checkpoint/test_folder.h"
#include "comm/in_process.h"
#include "support/captured.h"

namespace trainer {
namespace {

LayerCatalogue layer(int64_t parameters, int64_t output, int64_t gradient) {
  LayerCatalogue l;
  l.parameters = parameters;
  l.output_bytes = output;
  l.gradient_bytes = gradient;
  l.forward_flops = 10.0 * static_cast<double>(parameters);
  return l;
}

TimelineEvent event(const char* kind, int layer, int micro_batch, double begin, double seconds,
                    int step = 2) {
  TimelineEvent e;
  e.kind = kind;
  e.lane = "compute";
  e.step = step;
  e.layer = layer;
  e.micro_batch = micro_batch;
  e.begin = begin;
  e.end = begin + seconds;
  return e;
}

TEST(LayerProfile, MediansByShapeAndPlaceInTheStep) {
  const std::vector<LayerCatalogue> layers{layer(100, 8, 0), layer(200, 8, 8), layer(200, 8, 8),
                                           layer(50, 0, 8)};
  TimelineEvent sync = event("NormSync", -1, -1, 0, 9);
  sync.lane = "collective";
  const LayerProfile p = summarise_layers(
      {layers, 4, false},
      {event("Forward", 1, 0, 0, 1), event("Forward", 2, 0, 1.5, 3), event("Forward", 1, 1, 5, 4),
       event("Forward", 2, 1, 9.5, 8), event("Backward", 2, 0, 18, 5), event("Recover", 1, 1, 23.5, 2),
       event("UpdateShard", 0, -1, 26, 7), event("GradNorm", 3, -1, 33.5, 6), sync,
       event("Forward", 3, 1, 100, 2, 3)});
  // A step's first task comes after no gap that counts.
  EXPECT_DOUBLE_EQ(p.task_overhead_seconds, 0.5);
  const auto find = [&](const std::string& name) {
    for (const MeasuredLayer& m : p.layers)
      if (m.shape.layer == name) return m;
    return MeasuredLayer{};
  };
  const MeasuredLayer block = find("block");
  EXPECT_EQ(block.shape, shape_of(layers[1], 4, false));
  EXPECT_DOUBLE_EQ(block.first_forward_seconds, 2);  // of 1 and 3
  EXPECT_DOUBLE_EQ(block.forward_seconds, 8);
  EXPECT_DOUBLE_EQ(block.recovered_forward_seconds, 4);  // its backward is recovered for
  EXPECT_LT(block.first_recovered_forward_seconds, 0);
  EXPECT_DOUBLE_EQ(block.first_backward_seconds, 5);
  EXPECT_LT(block.backward_seconds, 0);  // not measured
  EXPECT_DOUBLE_EQ(block.recover_seconds, 2);
  EXPECT_DOUBLE_EQ(find("embedding").update_seconds, 7);
  EXPECT_DOUBLE_EQ(find("head").norm_seconds, 6);
  EXPECT_DOUBLE_EQ(find("head").forward_seconds, 2);
}

// Between passes a stage waits for others.
TEST(LayerProfile, WaitsAreNotOverhead) {
  const std::vector<LayerCatalogue> layers{layer(200, 8, 8), layer(200, 8, 8)};
  const LayerProfile p =
      summarise_layers({layers, 4, true}, {event("Forward", 0, 0, 0, 1), event("Forward", 1, 0, 1.25, 1),
                                           event("Forward", 0, 1, 9, 1), event("Backward", 1, 0, 19, 1),
                                           event("Forward", 0, 2, 29, 1)});
  EXPECT_DOUBLE_EQ(p.task_overhead_seconds, 0.25);
}

// A rank that was cut off before its update takes what the other found; what neither has stays unknown.
TEST(LayerProfile, ARankWithoutALengthDoesNotCount) {
  const std::vector<LayerCatalogue> layers{layer(100, 8, 0), layer(200, 8, 8)};
  const auto group = make_in_process_group(2);
  std::vector<LayerProfile> profiles(2);
  std::vector<std::jthread> ranks;
  for (size_t r = 0; r < 2; ++r)
    ranks.emplace_back([&, r] {
      std::vector<TimelineEvent> events{event("Forward", 1, 1, 0, r == 0 ? 2 : 4)};
      if (r == 0) events.push_back(event("UpdateShard", 1, -1, 9, 7));
      profiles[r] = summarise_layers({layers, 4, false}, events);
      average_over_ranks(profiles[r], *group[r]);
    });
  ranks.clear();
  for (const LayerProfile& p : profiles) {
    ASSERT_EQ(p.layers.size(), 2u);
    const MeasuredLayer& block = p.layers[0].shape.layer == "block" ? p.layers[0] : p.layers[1];
    EXPECT_DOUBLE_EQ(block.forward_seconds, 3);
    EXPECT_DOUBLE_EQ(block.update_seconds, 7);
    EXPECT_EQ(block.recover_seconds, -1);
  }
}

// Plans of one process, on the clock: figures of every round, and nothing else is written.
TEST(ProfileCommand, ChecksPlansInTurnWithProfiles) {
  const TestFolder folder;
  const std::string config = (folder.path() / "plan.json").string(),
                    out = (folder.path() / "checked.json").string();
  write_file_atomically(config, R"({"model": {"architecture": "llama", "num_layers": 2, "hidden_size": 16,
    "ffn_hidden_size": 32, "num_attention_heads": 2, "vocabulary_size": 64, "max_position_embeddings": 16},
    "data": {"data_path": "synthetic", "sequence_length": 16}, "precision": {"compute": "fp32"},
    "training": {"steps": 1, "micro_batch_size": 1, "global_batch_size": 2},
    "optimizer": {"lr": 1e-3}, "device": {"threads": 1}, "run": {"directory": "run"}})");
  const auto run = [&](std::vector<std::string> words) {
    return testing::capture([&] { return profile_command(words); });
  };
  const testing::Captured checked = run({config, "--check", out, "--rounds", "2", "--steps", "1"});
  ASSERT_EQ(checked.code, 0) << checked.errors;
  const Json plans = parse_json_file(out);
  ASSERT_EQ(plans.size(), 1u);
  EXPECT_EQ(plans[0]["config"], config);
  for (const char* key : {"measured_seconds", "predicted_seconds"}) {
    ASSERT_EQ(plans[0][key].size(), 2u) << key;
    for (const double seconds : plans[0][key].get<std::vector<double>>()) EXPECT_GT(seconds, 0) << key;
  }
  const CheckedPlan plan{config, plans[0]["measured_seconds"], plans[0]["predicted_seconds"]};
  EXPECT_NEAR(plans[0]["step_seconds"], plan.step_seconds(), 1e-12);
  EXPECT_NEAR(plans[0]["error"], plan.error(), 1e-12);
  EXPECT_EQ(run({config, "--rounds", "2"}).code, 2);
  EXPECT_EQ(run({config, "--check", out, "--out", "platform.json"}).code, 2);
}

// Forwards of a block that take 20 ms, one of them 30; another layer's that takes none of the pieces to its
// end.
TEST(LayerProfile, PiecesOfWorkSayHowLongTheyTook) {
  const std::vector<LayerCatalogue> layers{layer(100, 8, 0), layer(200, 8, 8), layer(50, 0, 8)};
  const std::vector<TimelineEvent> events{event("Forward", 1, 1, 0, 0.02), event("Forward", 1, 1, 1, 0.03),
                                          event("NormSync", -1, -1, 2, 5), event("Forward", 1, 1, 8, 0.02),
                                          event("Forward", 0, 1, 9, 0.004)};
  const RecordedProgram program{layers, 4, true};
  const LayerProfile p = summarise_layers(program, events);
  for (const MeasuredLayer& m : p.layers) EXPECT_TRUE(m.shape.pipelined);
  const std::vector<double> pieces = pieces_of_work(p, program, events);
  ASSERT_EQ(pieces.size(), 6u);
  for (size_t i = 0; i < pieces.size(); ++i) EXPECT_NEAR(pieces[i], i / 2 == 1 ? 1.5 : 1, 1e-9) << i;
}

TEST(LayerProfile, AsManyBlocksAsFitAreRun) {
  Config config;
  config.data.sequence_length = 8;
  config.training.micro_batch_size = 1;
  config.precision.compute = DType::kF32;
  ModelConfig model;
  model.num_layers = 30;
  model.vocabulary_size = 16;
  model.hidden_size = 64;
  model.ffn_hidden_size = 128;
  model.num_attention_heads = model.num_query_groups = 4;
  model.head_dim = 16;
  model.max_position_embeddings = 8;
  const int64_t plenty = int64_t{1} << 40;
  EXPECT_EQ(profiled_blocks(config, model, plenty, 1), kProfiledBlocks);
  EXPECT_EQ(profiled_blocks(config, model, 0, 1), 1);
  // As many on each stage, at least one.
  EXPECT_EQ(profiled_blocks(config, model, plenty, 3), 6);
  EXPECT_EQ(profiled_blocks(config, model, 0, 3), 3);
  EXPECT_EQ(profiled_stages(1, model), 1);
  EXPECT_EQ(profiled_stages(2, model), 2);
  EXPECT_EQ(profiled_stages(24, model), 8);
  EXPECT_EQ(profiled_stages(11, model), 1);
  // A block's state is 20 bytes for each of 4 x 64 x 64 + 3 x 64 x 128 weights and more.
  EXPECT_EQ(profiled_blocks(config, model, 4 * 1000 * 1000, 1), 4);
  model.num_layers = 3;
  EXPECT_EQ(profiled_blocks(config, model, plenty, 1), 3);
  EXPECT_EQ(profiled_stages(8, model), 2);
}

// Every layer is timed, whichever stage has it.
TEST(LayerProfile, RanksMeasureAsStagesOfPipelines) {
  Config config;
  config.data.sequence_length = 8;
  config.training.micro_batch_size = 1;
  config.precision.compute = DType::kF32;
  config.device.threads = 1;
  ModelConfig model;
  model.num_layers = 5;
  model.vocabulary_size = model.hidden_size = 16;
  model.ffn_hidden_size = 32;
  model.num_attention_heads = model.num_query_groups = 2;
  model.head_dim = 8;
  model.max_position_embeddings = 8;
  const auto group = make_in_process_group(4);  // two pipelines side by side
  std::vector<LayerProfile> profiles(group.size());
  {
    std::vector<std::jthread> ranks;
    for (size_t r = 0; r < group.size(); ++r)
      ranks.emplace_back(
          [&, r] { profiles[r] = measure_layers(config, model, *group[r], 2, 2, int64_t{1} << 40); });
  }
  for (const LayerProfile& p : profiles) EXPECT_EQ(p.layers, profiles[0].layers);
  std::set<std::string> kinds;
  for (const MeasuredLayer& m : profiles[0].layers) {
    EXPECT_TRUE(m.shape.pipelined);
    kinds.insert(m.shape.layer);
    for (const double seconds :
         {m.first_forward_seconds, m.forward_seconds, m.first_backward_seconds, m.backward_seconds})
      EXPECT_GT(seconds, 0) << m.shape.layer;
    if (m.shape.layer == "block") {
      EXPECT_GT(m.recovered_backward_seconds, 0);
    }
  }
  EXPECT_EQ(kinds, (std::set<std::string>{"embedding", "block", "head"}));
}

TEST(LinkProfile, TheShareOfACoreIsWhatTransfersTakeAtFullSpeed) {
  // One that shares a core evenly with work: it takes twice as long beside it.
  const CoreShare even = core_share_of(1, 2, 1, 1);
  EXPECT_DOUBLE_EQ(even.share, 1);
  EXPECT_DOUBLE_EQ(even.weight, 1);
  // One that hardly gets a core: ten times as long, for a tenth of which it has one.
  const CoreShare weak = core_share_of(1, 10, 1, 1);
  EXPECT_NEAR(weak.share, 1, 1e-12);
  EXPECT_NEAR(weak.weight, 1.0 / 9, 1e-12);
  // A transfer that keeps its speed and takes a fifth of the core.
  EXPECT_NEAR(core_share_of(1, 1, 0.2, 1).share, 0.2, 1e-12);
  // One that an engine moves.
  EXPECT_EQ(core_share_of(1, 1.5, 1e-4, 1).share, 0);
  // One that takes turns with one of eight threads; and one that polls longer beside work than alone.
  const CoreShare one_of_eight = core_share_of(1, 2, 1, 8);
  EXPECT_DOUBLE_EQ(one_of_eight.share, 1.0 / 8);
  EXPECT_DOUBLE_EQ(one_of_eight.weight, 1.0 / 15);
  EXPECT_EQ(core_share_of(1, 4, 3, 1).share, 1);
}

TEST(MachineProfile, BecomesAPlatformThatReadsBack) {
  MachineProfile m;
  m.ranks_per_node = 2;
  m.memory_bytes = 100;
  m.node_memory_bytes = 200;
  m.matmul_flops_per_second["fp32"] = 1e9;
  m.memory_bytes_per_second = 1e10;
  MeasuredLayer block;
  block.shape = {"block", "fp32", 10, 20, 1e9};
  block.forward_seconds = 2;
  block.backward_seconds = 5;
  block.first_backward_seconds = 6;
  block.refresh_seconds = 0.25;
  block.norm_seconds = 0.125;
  m.layers = {block};
  m.task_overhead_seconds = {1e-5, 9, 1e-6};
  m.within_node = LinkProfile{.latency_seconds = 1e-4,
                              .bytes_per_second = 1e9,
                              .core_wait_seconds = 3e-3,
                              .together_bytes_per_second = 1e9,
                              .sum_latency_seconds = 1e-5,
                              .sum_bytes_per_second = 5e8,
                              .sum_cores = {0.75, 0.5}};
  const Platform p = to_platform(m);
  EXPECT_EQ(parse_platform(platform_to_json(p).dump(), "again"), p);
  EXPECT_EQ(p.devices_per_node, 2);
  EXPECT_EQ(p.task_overhead_seconds, 1e-5);
  EXPECT_DOUBLE_EQ(p.forward_efficiency, 0.5);
  EXPECT_DOUBLE_EQ(p.backward_efficiency, 0.4);
  EXPECT_EQ(*p.measurement(block.shape), block);
  EXPECT_DOUBLE_EQ(p.link(LinkUse::kBoundary).within_node.bytes_per_second, 1e9);
  EXPECT_DOUBLE_EQ(p.link(LinkUse::kBoundary).within_node.core_wait_seconds, 3e-3);
  EXPECT_DOUBLE_EQ(p.link(LinkUse::kCollective).within_node.core_share, 0.75);
  EXPECT_DOUBLE_EQ(p.link(LinkUse::kCollective).within_node.core_weight, 0.5);
  EXPECT_EQ(p.link(LinkUse::kCollective).across_nodes.bytes_per_second, 0);
  // Of a node, on which both ranks had that much at once.
  EXPECT_DOUBLE_EQ(p.host_memory_bytes_per_second, 2e10);
}

TEST(CheckedPlan, ErrsByTheMedianRatioOfItsRounds) {
  const CheckedPlan plan{"p.json", {1, 2, 4}, {1.1, 4, 2}};  // the ratio of the medians is 1
  EXPECT_EQ(plan.step_seconds(), 2);
  EXPECT_NEAR(plan.error(), 0.1, 1e-12);
}

// Programs without a pace, and pipelines, leave that of others alone; layers in a pipeline are layers of
// their own.
TEST(MachineProfile, ProgramsAddUp) {
  LayerProfile one, pipeline;
  one.pace = {0.01, {{1, 2}, {3, 4}}};
  one.task_overhead_seconds = 0.5;
  pipeline.pace = {0.01, {{9}, {9}}};
  pipeline.task_overhead_seconds = 8;
  MeasuredLayer& alone = one.layers.emplace_back();
  alone.shape = shape_of(layer(200, 8, 8), 4, false);
  alone.forward_seconds = 1;
  MeasuredLayer& staged = pipeline.layers.emplace_back();
  staged.shape = shape_of(layer(200, 8, 8), 4, true);
  staged.forward_seconds = 2;
  MachineProfile m;
  m.matmul_flops_per_second["fp32"] = 1e9;
  add_layers(m, one);
  add_layers(m, pipeline);
  add_layers(m, {});
  EXPECT_EQ(m.pace, one.pace);
  EXPECT_EQ(m.task_overhead_seconds, (std::vector<double>{0.5, 0}));
  MachineProfile staged_only;
  add_layers(staged_only, pipeline);
  EXPECT_EQ(staged_only.pace, pipeline.pace);
  EXPECT_EQ(staged_only.task_overhead_seconds, (std::vector<double>{8}));
  const Platform p = to_platform(m);
  ASSERT_EQ(p.measured.size(), 2u);
  EXPECT_EQ(*p.measurement(alone.shape), alone);
  EXPECT_EQ(*p.measurement(staged.shape), staged);
}

TEST(MachineProfile, EveryLinkSaysWhereItIsFrom) {
  MachineProfile m;
  m.within_node = LinkProfile{.together_bytes_per_second = 3e9};
  m.across_nodes = LinkProfile{.together_bytes_per_second = 7e8};
  const Platform p = to_platform(m);
  const std::string& boundary = p.link(LinkUse::kBoundary).source;
  for (const char* part : {"within a node: ", "3e+09", "across nodes: ", "7e+08"})
    EXPECT_NE(boundary.find(part), std::string::npos) << boundary;
  EXPECT_FALSE(p.link(LinkUse::kCollective).source.empty());
}

}  // namespace
}  // namespace trainer

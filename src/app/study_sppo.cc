#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "app/study.h"
#include "plan/sequence_plan.h"
#include "schedule/sequence_pipeline.h"
#include "sim/simulator.h"

namespace trainer {
namespace {

void boundary_rows(Study& study) {
  struct Column {
    const char* name;
    const char* published[4];
  };
  constexpr Column kColumns[] = {{"left segments", {"0,1,2", "0,1", "0", "-"}},
                                 {"steady segments", {"3,4,5,6,7", "2,3,4,5,6", "1,2,3,4,5", "0,1,2,3,4"}},
                                 {"right segments", {"-", "7", "6,7", "5,6,7"}},
                                 {"left stages", {"0,1,2,3", "1,2,3", "2,3", "-"}},
                                 {"right stages", {"-", "0,1", "0,1,2", "0,1,2,3"}}};
  for (size_t c = 0; c < std::size(kColumns); ++c)
    for (int i = 0; i < 4; ++i) {
      const BoundarySets sets = boundary_sets(4, 8, i);
      const IndexRange ours[] = {sets.left, sets.steady, sets.right, sets.left_stages, sets.right_stages};
      StudyRow row;
      row.table = "Table 3: boundary sets, PP = 4, N = 8";
      row.row = fmt::format("stage {}, {}", i, kColumns[c].name);
      row.published = std::string(kColumns[c].published[i]);
      row.ours = list_of(ours[c]);
      row.measure = StudyError::kEqual;
      study.rows.push_back(std::move(row));
    }
}

StudyRow number(const char* table, std::string row, StudyValue published, double ours,
                StudyError measure = StudyError::kRelative, std::string unit = "", std::string note = "") {
  return {table, std::move(row), std::move(published), ours, measure, std::move(unit), std::move(note)};
}

void split_rows(Study& study) {
  const char* table = "Balanced cut, 65B (h = 8192), 128K tokens: first segment over last";
  for (const auto& [count, corrected, measured] : {std::tuple{8, 2.74, 3.69}, std::tuple{16, 3.10, 4.65}}) {
    const auto lengths = balanced_segments(128 * 1024, 8192, count, 1);
    const double ratio = static_cast<double>(lengths.front()) / static_cast<double>(lengths.back());
    study.rows.push_back(number(table, fmt::format("N = {}, equal FLOPs", count), corrected, ratio));
    study.rows.push_back(
        number(table, fmt::format("N = {}, Fig. 5", count), measured, ratio, StudyError::kRelative, "",
               "the figure's segments are cut by measured times, which fall less than FLOPs with "
               "the length; balance_measured takes such times, the closed form is its seed"));
  }
}

void offload_rows(Study& study) {
  OffloadProblem p;
  p.bytes = {50, 70, 1};
  p.seconds = {1, 1, 1};
  p.bandwidth = 40;
  p.resident = 20;
  p.budget = 100;
  const OffloadPlan plan = plan_offload(p).value();
  const char* table = "Offload, example of 50 and 70 GB with a threshold of 40 GB";
  study.rows.push_back(number(table, "alpha of segment 0", 0.8, plan.share[0]));
  study.rows.push_back(number(table, "alpha of segment 1", 0.57, plan.share[1]));
  study.rows.push_back(
      number(table, "peak with 20 GB of keys and values", 100.0, plan.peak, StudyError::kRelative, "GB"));
  const char* first = "Offload, 65B, first segment of Fig. 5 (10.59 GB)";
  study.rows.push_back(number(first, "N = 8, threshold 4.3 GB: alpha of segment 0", 0.41, 4.3 / 10.59));
}

void limit_rows(Study& study) {
  const char* table = "Limits";
  OffloadProblem p;
  p.bytes = {10.59, 8, 6.5, 5.5, 4.8, 4, 3.4, 2.87};
  p.seconds.assign(8, 0.36);
  p.bandwidth = 12;
  p.resident = 4;
  p.budget = 36;
  OffloadProblem memory = p, bandwidth = p;
  memory.budget = bandwidth.bandwidth = std::numeric_limits<double>::infinity();
  const OffloadPlan all = plan_offload(bandwidth).value(), none = plan_offload(memory).value();
  double most = 0, least = 1;
  for (size_t i = 0; i + 1 < p.bytes.size(); ++i) {
    most = std::max(most, none.share[i]);
    least = std::min(least, all.share[i]);
  }
  study.rows.push_back(number(table, "infinite memory: largest alpha", 0.0, most, StudyError::kDifference));
  study.rows.push_back(number(table, "infinite bandwidth: least alpha but the last", 1.0, least));
  study.rows.push_back(number(table, "infinite bandwidth: peak, keys and values and one segment",
                              p.resident + p.bytes[0], all.peak, StudyError::kRelative, "GB"));
  const BoundarySets one = boundary_sets(1, 8, 0);
  study.rows.push_back(number(table, "one stage: multiplexed segments", 0.0,
                              one.left.size() + one.right.size(), StudyError::kDifference));
}

// Of forward and backward of a sequence in equal segments, one second each.
double pipeline_seconds(int stages, int segments, bool multiplex) {
  Problem problem;
  problem.stages = stages;
  problem.first_layer = {0};
  for (int l = 0; l < stages + 2; ++l) {
    LayerCatalogue c;
    c.name = fmt::format("layer {}", l);
    c.parameters = c.output_bytes = c.gradient_bytes = 64;
    problem.layers.push_back(std::move(c));
    if (l > 0 && l < stages) problem.first_layer.push_back(l + 1);
  }
  problem.first_layer.push_back(stages + 2);
  StepGraphBuilder builder;
  sequence_pipeline(builder, problem, {std::vector<int64_t>(static_cast<size_t>(segments), 1), multiplex});
  const StepGraph graph = builder.build();
  CostTable costs;
  for (const Task& t : graph.tasks) {
    const bool block = t.at.layer_begin > 0 && t.at.layer_begin <= stages;
    const bool compute = t.kind == TaskKind::kForward || t.kind == TaskKind::kBackward;
    int parts = 1;
    if (multiplex && compute)
      parts = boundary_sets(stages, segments, t.at.stage).stages_of(t.at.stage, t.at.segment).size();
    costs.seconds.push_back(compute && block ? 1.0 / parts : 0);
  }
  return simulate(graph, costs).end;
}

constexpr const char* kMultiplexNote =
    "published: near 0; the sets give the middle stages more parts than the outer ones, and over more than "
    "four stages "
    "helpers also wait for each other";

void bubble_rows(Study& study) {
  const char* table = "Bubble over work, segments of equal time, transfers of none";
  for (const auto& [stages, segments] : {std::pair{4, 8}, std::pair{4, 16}, std::pair{8, 32}}) {
    const double work = 2.0 * segments;
    study.rows.push_back(number(table, fmt::format("PP = {}, N = {}", stages, segments),
                                100 * sequence_bubble_ratio(stages, segments),
                                100 * (pipeline_seconds(stages, segments, false) / work - 1),
                                StudyError::kDifference, "%"));
    study.rows.push_back(number(table, fmt::format("PP = {}, N = {}, multiplexed", stages, segments), 0.0,
                                100 * (pipeline_seconds(stages, segments, true) / work - 1),
                                StudyError::kDifference, "%", kMultiplexNote));
  }
}

}  // namespace

Study sppo_study() {
  Study study;
  study.title = "SPPO";
  boundary_rows(study);
  split_rows(study);
  offload_rows(study);
  limit_rows(study);
  bubble_rows(study);
  study.assumptions = {
      "The boundary sets are those of Table 3, in half-open form; the definition in the paper's text is off "
      "by one.",
      "Segments of equal FLOPs: the paper gives no closed form; a layer's work on a prefix of t tokens is "
      "taken as "
      "t^2 + 12 h t.",
      "alpha grows with the segment's number, though the paper says that it falls: balanced early segments "
      "are longer "
      "and the threshold is the same for all.",
      "Keys and values are resident with the accumulators of their gradients, 8 bytes a token and hidden "
      "unit in all; "
      "34 may be offloaded. The paper counts 2 and 36.",
      "alpha of the last segment is 0: its backward follows at once. The paper sets 1, which changes no "
      "figure.",
      "Rules against groups over several nodes are costs of the network here, not bans: Table 4's own plans "
      "break "
      "them.",
      "Helpers of multiplexed segments hold copies of the stage's weights and gradients of their own, which "
      "the owner "
      "adds to its own; the paper does not say how helpers get weights."};
  return study;
}

}  // namespace trainer

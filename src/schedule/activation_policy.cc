#include "schedule/activation_policy.h"

#include <algorithm>
#include <numeric>

#include "schedule/memory.h"
#include "schedule/passes.h"

namespace trainer {
namespace {

constexpr uint64_t kEverything = ~uint64_t{0};

// A saved tensor of a block, or those that are recovered together.
struct Candidate {
  int layer;
  uint64_t bits;
  double bytes, flops;
};

bool is_block(const Problem& problem, int layer) { return layer > 0 && layer < problem.layer_count() - 1; }

// Tensors without a cost of their own come with the one before them.
std::vector<Candidate> candidates(const Problem& problem, int layer) {
  std::vector<Candidate> list;
  const auto& saved = problem.layers[static_cast<size_t>(layer)].saved;
  for (size_t i = 0; i < saved.size(); ++i) {
    if (saved[i].recompute_flops > 0 || list.empty()) list.push_back({layer, 0, 0, 0});
    list.back().bits |= uint64_t{1} << i;
    list.back().bytes += static_cast<double>(saved[i].bytes);
    list.back().flops += saved[i].recompute_flops;
  }
  return list;
}

void dearest_first(std::vector<Candidate>& list) {
  std::stable_sort(list.begin(), list.end(), [](const Candidate& a, const Candidate& b) {
    return a.flops * b.bytes > b.flops * a.bytes;
  });
}

bool fits(const Problem& problem, int stage, int64_t budget) {
  const int rank = problem.rank_of(stage, 0);
  Problem one = problem;
  one.ranks = {rank};
  const TierBytes tiers = arena_bytes(build_step_graph(one), rank);
  return std::accumulate(tiers.begin(), tiers.end(), int64_t{0}) <= budget;
}

void keep_what_fits(Problem& problem, int stage, int64_t budget) {
  std::vector<Candidate> list;
  for (int l = problem.first_layer[static_cast<size_t>(stage)];
       l < problem.first_layer[static_cast<size_t>(stage) + 1]; ++l)
    if (is_block(problem, l))
      for (const Candidate& c : candidates(problem, l)) list.push_back(c);
  dearest_first(list);
  const auto keep = [&](size_t count) {
    for (const Candidate& c : list) problem.kept[static_cast<size_t>(c.layer)] &= ~c.bits;
    for (size_t i = 0; i < count; ++i) problem.kept[static_cast<size_t>(list[i].layer)] |= list[i].bits;
  };
  // Without recoveries there are no buffers for them. Else more kept needs more memory, but for the odd gap.
  keep(list.size());
  if (budget <= 0 || fits(problem, stage, budget)) return;
  size_t low = 0, high = list.empty() ? 0 : list.size() - 1;
  while (low < high) {
    const size_t middle = (low + high + 1) / 2;
    keep(middle);
    if (fits(problem, stage, budget))
      low = middle;
    else
      high = middle - 1;
  }
  keep(low);
}

// Those that cost at least the block's average for their bytes.
uint64_t dear_ones(const Problem& problem, int layer) {
  const auto list = candidates(problem, layer);
  double bytes = 0, flops = 0;
  for (const Candidate& c : list) {
    bytes += c.bytes;
    flops += c.flops;
  }
  uint64_t bits = 0;
  for (const Candidate& c : list)
    if (c.flops * bytes >= flops * c.bytes) bits |= c.bits;
  return bits;
}

void recover_before(StepGraphBuilder& builder, TaskId backward, const std::vector<bool>& missing) {
  Task recover = builder.task(backward);
  recover.kind = TaskKind::kRecover;
  recover.after.clear();
  std::erase_if(recover.uses,
                [](const Use& use) { return use.role == Role::kGradient || use.role == Role::kOutput; });
  for (Use& use : recover.uses) {
    if (use.role != Role::kSaved || !missing[static_cast<size_t>(use.index)]) continue;
    use.access = Access::kWrite;
    builder.buffer(use.buffer).tier = Tier::kShort;
  }
  builder.insert_before(backward, std::move(recover));
}

}  // namespace

std::vector<uint64_t> choose_kept(Problem problem, ActivationPolicy policy, bool last_stage_keeps,
                                  int64_t memory_budget) {
  if (policy == ActivationPolicy::kFullSave) return {};
  problem.kept.assign(problem.layers.size(), kEverything);
  for (int l = 0; l < problem.layer_count(); ++l)
    if (is_block(problem, l))
      problem.kept[static_cast<size_t>(l)] =
          policy == ActivationPolicy::kSelective ? dear_ones(problem, l) : 0;
  if (policy == ActivationPolicy::kKeepWhatFits) {
    for (int stage = 0; stage < problem.stages; ++stage) keep_what_fits(problem, stage, memory_budget);
  } else if (last_stage_keeps) {
    const int stage = problem.stages - 1;
    const auto without = problem.kept;
    for (int l = problem.first_layer[static_cast<size_t>(stage)]; l < problem.layer_count(); ++l)
      problem.kept[static_cast<size_t>(l)] = kEverything;
    if (memory_budget > 0 && !fits(problem, stage, memory_budget)) return without;
  }
  return problem.kept;
}

void write_recoveries(StepGraphBuilder& builder, const Problem& problem) {
  if (problem.kept.empty() || problem.forward_only) return;
  const auto sequence = builder.sequence();
  for (TaskId id : sequence) {
    const int layer = builder.task(id).at.layer_begin;
    if (!is_block(problem, layer)) continue;
    const size_t count = problem.layers[static_cast<size_t>(layer)].saved.size();
    std::vector<bool> missing(count);
    for (size_t i = 0; i < count; ++i) missing[i] = !problem.keeps(layer, i);
    if (std::none_of(missing.begin(), missing.end(), [](bool b) { return b; })) continue;
    if (builder.task(id).kind == TaskKind::kForward)
      std::erase_if(builder.task(id).uses, [&](const Use& use) {
        return use.role == Role::kSaved && missing[static_cast<size_t>(use.index)];
      });
    if (builder.task(id).kind == TaskKind::kBackward) recover_before(builder, id, missing);
  }
}

}  // namespace trainer

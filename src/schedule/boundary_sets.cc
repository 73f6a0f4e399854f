#include "schedule/boundary_sets.h"

#include "base/error.h"

namespace trainer {
namespace {

IndexRange range(int begin, int end) { return begin < end ? IndexRange{begin, end} : IndexRange{}; }

}  // namespace

IndexRange BoundarySets::stages_of(int stage, int segment) const {
  if (left.contains(segment)) return left_stages;
  if (right.contains(segment)) return right_stages;
  return {stage, stage + 1};
}

BoundarySets boundary_sets(int stages, int segments, int stage) {
  require(0 <= stage && stage < stages, "stage {} of {}", stage, stages);
  if (segments < stages - 1)
    input_error("{} segments over {} stages: the boundaries would overlap; use at least {} segments",
                segments, stages, stages - 1);
  BoundarySets sets;
  const int left = stages - 1 - stage, right = segments - stage;
  sets.left = range(0, left);
  sets.steady = range(left, right);
  sets.right = range(right, segments);
  if (!sets.left.empty()) sets.left_stages = range(stage, stages);
  if (!sets.right.empty()) sets.right_stages = range(0, stage + 1);
  return sets;
}

std::string list_of(const IndexRange& range) {
  std::string text;
  for (int i = range.begin; i < range.end; ++i) text += fmt::format("{}{}", i > range.begin ? "," : "", i);
  return text.empty() ? "-" : text;
}

}  // namespace trainer

// Multiplexed boundary partition of a pipeline over the segments of a sequence (SPPO, section 6): while the
// pipeline fills and drains, the segments of a stage are cut once more and computed together with stages that
// would be idle.
#pragma once

#include <string>

namespace trainer {

// Half open; empty: begin == end == 0.
struct IndexRange {
  int begin = 0, end = 0;
  bool empty() const { return begin == end; }
  int size() const { return end - begin; }
  bool contains(int index) const { return begin <= index && index < end; }
  bool operator==(const IndexRange&) const = default;
};

// Of one stage.
struct BoundarySets {
  IndexRange left, steady, right;  // segments
  IndexRange left_stages,
      right_stages;  // whose devices compute the left and right segments, the stage itself among them

  // The stages that compute `segment`: one in the steady set.
  IndexRange stages_of(int stage, int segment) const;
};

// Segments 0 <= x < PP-1-i of stage i are computed by stages {i..PP-1}, N-i <= x < N by {0..i}, the others by
// stage i alone. Throws InputError when there are fewer segments than boundaries (N < PP - 1), which would
// make the sets overlap.
BoundarySets boundary_sets(int stages, int segments, int stage);

// "0,1,2"; "-" when empty.
std::string list_of(const IndexRange& range);

}  // namespace trainer

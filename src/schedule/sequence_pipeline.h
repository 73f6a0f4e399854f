// Front end: a pipeline over the segments of each sequence (SPPO, arXiv 2503.10377). Forwards run over the
// segments in order, backwards from the last one down, as a segment's keys and values get gradients from all
// later ones.
#pragma once

#include <vector>

#include "schedule/boundary_sets.h"
#include "schedule/problem.h"
#include "schedule/step_graph.h"

namespace trainer {

struct SequencePipeline {
  std::vector<int64_t> segments;  // tokens of each
  // The boundary sets' segments are computed by several stages together, each a part of equal tokens. Nothing
  // changes where there is one stage.
  bool multiplex = false;
};

// Writes all ranks of one replica; Coordinates::segment numbers the segments. The catalogues of `problem` are
// of whole sequences; a segment has its tokens' share of them, but keys, values and the accumulators of their
// gradients (ReuseClass::kLaterSegment) are kept for the whole sequence, as Role::kCarry. Throws InputError
// for several replicas or virtual ranks, tied weights, and too few segments (boundary_sets).
//
// A multiplexed segment: the stage's owner sends each helper its part of the input and the keys and values so
// far, and gets back its part of the output, keys and values, and in the backward the gradients of those. A
// task of a helper has the coordinates of the owner's stage and its own rank. Helpers hold copies of the
// stage's weights, which come at the start of the step, and add to gradients of their own, which the owner
// folds into its own at the end; no paper says how helpers get weights. The exchange of keys and values
// inside the group is one message each way.
void sequence_pipeline(StepGraphBuilder& builder, const Problem& problem, const SequencePipeline& plan);

}  // namespace trainer

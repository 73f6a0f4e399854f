// Front ends: pipelines that differ from one_f_one_b in the order of their slots only. Where a rank holds
// several stages, Problem::first_layer has as many entries (pipeline_writer.h).
#pragma once

#include "schedule/pipeline_writer.h"

namespace trainer {

// All forwards, then all backwards (GPipe).
std::vector<Slot> gpipe_slots(int stage, int micro_batches);
void gpipe(StepGraphBuilder& builder, const Problem& problem);

// One forward and one backward in turn over v stages a rank, in rounds of about P micro-batches
// (Megatron-LM's interleaved schedule, in PyTorch's order of slots). Throws InputError when the micro-batches
// do not divide into rounds.
std::vector<Slot> interleaved_1f1b_slots(int pipeline_ranks, int rank, int stages_per_rank,
                                         int micro_batches);
void interleaved_1f1b(StepGraphBuilder& builder, const Problem& problem);

// Each stage of a rank runs all micro-batches before the next one does; backwards in the opposite order of
// stages and micro-batches (breadth-first pipeline parallelism).
std::vector<Slot> looped_bfs_slots(int pipeline_ranks, int rank, int stages_per_rank, int micro_batches);
void looped_bfs(StepGraphBuilder& builder, const Problem& problem);

}  // namespace trainer

// Front end: non-interleaved one-forward-one-backward (PipeDream-Flush, as Megatron-LM runs it). One stage is
// the same code.
#pragma once

#include "schedule/pipeline_writer.h"

namespace trainer {

std::vector<Slot> one_f_one_b_slots(int stages, int stage, int micro_batches, bool forward_only = false);

void one_f_one_b(StepGraphBuilder& builder, const Problem& problem);

}  // namespace trainer

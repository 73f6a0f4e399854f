// RoundPipe's schedule study (arXiv 2604.27085 and its artifact): measured times, partitions and figures of
// five models on 8 devices with 16 micro-batches.
#pragma once

#include <vector>

#include "plan/timed_pipeline.h"

namespace trainer {

struct RoundPipePublished {
  const char* name;
  TimedModel model;                   // in milliseconds
  std::vector<int> pipeline, looped;  // blocks of each stage: 1F1B and GPipe; interleaved 1F1B and Looped-BFS
  std::vector<int> forward, backward;  // RoundPipe's, as the published simulation takes them: blocks, the
                                       // fused stage [0] of `backward` without the head
  double one_f_one_b, gpipe, interleaved, looped_bfs, sync, async;  // bubbles, %
  double makespan;                                                  // of RoundPipe's step, milliseconds

  // RoundPipe's backward partition with the head, a layer of the fused stage.
  std::vector<int> backward_with_head() const;
};

inline constexpr int kRoundPipeDevices = 8, kRoundPipeMicroBatches = 16;

const std::vector<RoundPipePublished>& roundpipe_published();

}  // namespace trainer

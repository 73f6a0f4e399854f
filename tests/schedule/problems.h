// Small invented problems for tests of the schedule.
#pragma once

#include "schedule/activation_policy.h"
#include "schedule/passes.h"

namespace trainer::testing {

inline Problem small_problem(int blocks, int stages, int replicas, int micro_batches, bool tied = true,
                             int64_t element_bytes = 4) {
  Problem p;
  p.stages = stages;
  p.replicas = replicas;
  p.micro_batches = micro_batches;
  p.element_bytes = element_bytes;
  for (int l = 0; l < blocks + 2; ++l) {
    LayerCatalogue c;
    const bool embedding = l == 0, head = l == blocks + 1;
    c.name = embedding ? "embedding" : head ? "head" : "block " + std::to_string(l);
    c.parameters = embedding ? 640 : 256 + 16 * l;
    c.tensors = {{0, c.parameters / 2}, {c.parameters / 2, c.parameters - c.parameters / 2}};
    c.output_bytes = head ? 0 : 512;
    c.gradient_bytes = embedding ? 0 : 512;
    c.temporary_bytes = 128;
    if (head && tied) {
      c.shared_block = 0;
      c.shared_parameters = 640;
    }
    if (head)
      c.saved = {{"normed", 512, 10, ReuseClass::kBackward}, {"gradient", 512, 20, ReuseClass::kBackward}};
    if (!embedding && !head)
      c.saved = {{"q", 256, 10, ReuseClass::kBackward},
                 {"k", 128, 10, ReuseClass::kLaterSegment},
                 {"out", 320, 30, ReuseClass::kBackward}};
    p.layers.push_back(c);
  }
  p.first_layer = first_layers(even_stage_layers(blocks, stages));
  return p;
}

}  // namespace trainer::testing

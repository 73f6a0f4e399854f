// Plans for pipelines over the segments of long sequences (SPPO, arXiv 2503.10377): where to cut, how much of
// each segment's activations to copy to host memory, and how many devices to use in which way.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/catalogue.h"

namespace trainer {

// Lengths of `count` segments of equal FLOPs under causal attention: a layer's work on a prefix of t tokens
// grows as t^2 + 12 h t. Cuts are rounded to `multiple` tokens. Throws InputError when that leaves a segment
// empty.
std::vector<int64_t> balanced_segments(int64_t sequence, int64_t hidden, int count, int64_t multiple);

// Seconds of the segment [begin, end) of tokens, measured; must not fall when the segment grows at either
// end.
using SegmentSeconds = std::function<double(int64_t begin, int64_t end)>;

// The cut in multiples of `multiple` tokens whose slowest segment is the fastest. `seed`: where to start
// looking.
std::vector<int64_t> balance_measured(const std::vector<int64_t>& seed, int64_t multiple,
                                      const SegmentSeconds& seconds);

// Saved tensors of one layer and segment that live and move together.
struct ActivationUnit {
  int layer = 0, segment = 0;
  bool resident = false;  // keys and values, which every later segment reads: never offloaded
  int64_t bytes = 0;
  int first_use = 0, last_use = 0;  // slots of one micro-batch: forwards 0 .. N - 1, backwards N .. 2 N - 1
};

// By layer and segment, resident units first. `layer`: saved tensors of the whole sequence.
std::vector<ActivationUnit> activation_units(const std::vector<LayerCatalogue>& layers,
                                             const std::vector<int64_t>& segments);

struct OffloadProblem {
  std::vector<double> bytes;    // [segments] A_i, what may be offloaded
  std::vector<double> seconds;  // [segments] of compute
  double bandwidth = 0;  // to host memory, bytes per second, as measured beside compute; may be infinite
  double resident = 0;   // bytes of keys and values, and of the accumulators of their gradients
  double budget = 0;     // bytes of device memory for activations; may be infinite
};

struct OffloadPlan {
  std::vector<double>
      share;  // [segments] alpha_i: of A_i, copied while segment i + 1 computes; 0 for the last
  std::vector<double> memory;  // [segments] M_i + resident: held when segment i has computed, copies that are
                               // not through included
  double peak = 0, threshold = 0;  // bytes; threshold: what one segment's compute hides
  double exposed = 0;              // seconds of copies beyond the compute that they run under
};

// No offload when everything fits. Else alpha_i = min(1, threshold / A_i), threshold = min_i bandwidth
// T_{i+1}; if that is too little for the budget, the least larger threshold that is enough, with exposed
// time. Empty: not even offloading everything is enough.
std::optional<OffloadPlan> plan_offload(const OffloadProblem& problem);

// The plan's figures for given shares.
OffloadPlan evaluate_offload(const OffloadProblem& problem, const std::vector<double>& share);

// Fill and drain of p stages over N segments, as a share of the work and in seconds; `seconds`: of one
// stage's work.
double sequence_bubble_ratio(int stages, int segments);
double sequence_pipeline_seconds(int stages, int segments, double seconds);

struct SequenceModel {
  int layers = 1;
  int64_t hidden = 1, sequence = 1;
  int devices = 1, devices_per_node = 8;
  double flops_per_second = 1;      // of a device, at long segments
  int64_t half_speed_tokens = 512;  // of one device and segment, at which it reaches half of that
  double node_bandwidth = 1, network_bandwidth = 1, host_bandwidth = 1;  // bytes per second of one device
  double device_memory = 0;                                              // bytes for activations
  int multiple = 128;                                                    // tokens a segment is rounded to
};

struct SequencePlan {
  int sequence_parallel = 1, stages = 1, segments = 1;  // SP, PP, N
  std::vector<int64_t> lengths;
  OffloadPlan offload;
  double compute = 0, bubble = 0, exposed = 0, exchange = 0;  // seconds of one sequence, forward and backward
  double seconds() const { return compute + bubble + exposed + exchange; }
};

// Feasible plans over SP x PP = devices and N a power of two, fastest first. Between 2K and 16K tokens a
// device and segment; groups over several nodes pay for the network instead of being ruled out.
std::vector<SequencePlan> plan_sequences(const SequenceModel& model);

}  // namespace trainer

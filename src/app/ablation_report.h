// How the results of `trainer ablate` are written down.
#pragma once

#include <span>
#include <string>

#include "app/ablation.h"

namespace trainer {

// A list of {name, step_seconds, exposed {comm, update, prefetch, recover}, tail_seconds, peak_memory_bytes,
// predicted_memory_bytes, losses} and more, in the order of the results. Figures of what was not run are
// null.
std::string ablation_json(std::span<const AblationResult> results);

// The main table: a line per variant, columns aligned for a terminal.
std::string ablation_table(std::span<const AblationResult> results);

struct AblationHeading {
  std::string config;   // its path
  std::string command;  // what made the results
  std::string machine;
  std::string plan;  // of "full"
  int warm_up_steps = 0, measured_steps = 0, rounds = 0;
  std::string picture;  // path from the document to the chart
};
std::string ablation_markdown(const AblationHeading& heading, std::span<const AblationResult> results);

// Self-contained SVG: step time by parts, tail and memory, a row per variant.
std::string ablation_chart(std::span<const AblationResult> results);

}  // namespace trainer

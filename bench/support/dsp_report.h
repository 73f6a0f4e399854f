// The head of what programs report of the simulated DSP cluster.
#pragma once

#include "support/program.h"

namespace trainer {

// Without rows. `check_error`: of the values against double precision.
inline Json dsp_report(const char* name, const Words& words, double check_error) {
  return {{"benchmark", name},    {"command", command_line(name, "dsp", words)}, {"backend", "dsp"},
          {"simulated", true},    {"machine", "simulated DSP cluster"},          {"check_error", check_error},
          {"rows", Json::array()}};
}

}  // namespace trainer

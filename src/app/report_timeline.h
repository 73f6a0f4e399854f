// The traced steps of a run as HTML. Internal to the report files of this folder.
#pragma once

#include <string>

#include "schedule/timeline.h"

namespace trainer::report {

// One block per step, the first open: every lane of every rank as a row of coloured tasks.
std::string timeline_section(const Timeline& timeline);

// Bytes in use over each traced step, one chart per rank, to a common scale; "" without samples.
std::string memory_section(const Timeline& timeline);

}  // namespace trainer::report

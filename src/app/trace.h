// Traces of chosen steps in the JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open: one process
// per rank, one track per lane, memory by tier as counters, an arrow from each Send to its Receive.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/json.h"
#include "comm/communicator.h"
#include "schedule/timeline.h"

namespace trainer {

// Times are in microseconds since the start of the run.
Json trace_json(const Timeline& timeline);
// Throws RunError when the file cannot be written.
void write_trace(const std::filesystem::path& path, const Timeline& timeline);
// What write_trace wrote, in the same order. Throws InputError.
Timeline read_trace(const std::filesystem::path& path);

// Its events of one step, and the memory samples from the first of them to the last.
Timeline step_of(const Timeline& timeline, int64_t step);

// Timelines of all ranks as one; only on rank 0. Collective.
Timeline gather_timeline(Communicator& world, const Timeline& mine);

// The timeline that trace_json made `json` from. `where` heads error messages.
Timeline parse_trace(const Json& json, const std::string& where);

// RUN_DIRECTORY/traces/step-000020.json
std::filesystem::path trace_path(const std::filesystem::path& run_directory, int64_t step);
// RUN_DIRECTORY/traces/simulated.json: the first traced step, simulated from the lengths of its tasks.
std::filesystem::path simulated_trace_path(const std::filesystem::path& run_directory);
// The trace files of a run in order of steps; empty when there are none.
std::vector<std::filesystem::path> list_traces(const std::filesystem::path& run_directory);

}  // namespace trainer

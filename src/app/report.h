// report.html: what a run did, in one file that needs nothing else: loss, speed, where the waiting went, the
// timeline of traced steps, memory by tier, config and plan.
#pragma once

#include <filesystem>
#include <span>
#include <string>

namespace trainer {

// Writes the report of a run from the files in its directory: metrics.jsonl, and where they are there
// resolved_config.json, plan.json, summary.json and traces/. Throws InputError when there are no metrics,
// RunError when it cannot be written.
void write_report(const std::filesystem::path& run_directory);

// `trainer report RUN_DIRECTORY`. Returns the exit code.
int report_command(std::span<const std::string> arguments);

}  // namespace trainer

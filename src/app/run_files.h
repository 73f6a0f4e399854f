// The names of what a run directory holds.
#pragma once

#include <filesystem>

namespace trainer {

struct RunFiles {
  explicit RunFiles(const std::filesystem::path& directory)
      : config(directory / "resolved_config.json"),
        plan(directory / "plan.json"),
        metrics(directory / "metrics.jsonl"),
        summary(directory / "summary.json"),
        report(directory / "report.html"),
        tensorboard(directory / "tensorboard"),
        checkpoints(directory / "checkpoints") {}

  std::filesystem::path config;       // with every default filled in
  std::filesystem::path plan;         // sizes, schedule, predicted memory; one JSON object, free in form
  std::filesystem::path metrics;      // see app/metrics.h
  std::filesystem::path summary;      // results of the whole run; one JSON object, free in form
  std::filesystem::path report;       // see app/report.h
  std::filesystem::path tensorboard;  // folder of event files
  std::filesystem::path checkpoints;  // folder
};

}  // namespace trainer

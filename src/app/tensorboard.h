// Event files that TensorBoard reads: scalars only, in a record format of length, data and checksums.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace trainer {

struct StepMetrics;

class TensorBoardWriter {
 public:
  // A new event file in `directory`, which is made when it is missing. What earlier files of the directory
  // hold from `first_step` on is void to TensorBoard. Throws RunError.
  TensorBoardWriter(const std::filesystem::path& directory, int64_t first_step);

  // Written to the file when `flush` is called and at the end. Throws RunError, naming the path.
  void scalar(std::string_view tag, int64_t step, double value);
  void flush();

 private:
  void record(const std::string& event);

  std::filesystem::path path_;
  std::ofstream file_;
};

// Every figure of a step under tags such as "train/loss" and "waiting/bubble", flushed.
void write_step(TensorBoardWriter& writer, const StepMetrics& metrics);

}  // namespace trainer

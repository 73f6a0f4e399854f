#include "app/convert.h"

#include <algorithm>

#include "app/command.h"
#include "app/options.h"
#include "base/units.h"
#include "checkpoint/hugging_face.h"

namespace trainer {
namespace {

constexpr const char* kConvertUsage =
    R"(usage: trainer convert --from SOURCE --to FOLDER [options]

Writes a Hugging Face model folder: config.json, safetensors, tokenizer files.

  --from SOURCE            a run directory (its newest good checkpoint), one of its checkpoints, or a Hugging
                           Face folder
  --to FOLDER              the folder to make; nothing that is there already is overwritten
  --dtype fp32|bf16        of the weights (default: as the source has them; checkpoints have fp32)
  --tokenizer PATH         the tokenizer to put beside the weights (default: the source's own)
  --max-shard-size SIZE    several files when the weights take more, such as 2GB (default: 5GB)
)";

std::optional<TensorType> parse_type(const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  if (*text == "fp32") return TensorType::kF32;
  if (*text == "bf16") return TensorType::kBF16;
  input_error("--dtype: expected fp32 or bf16, found '{}'", *text);
}

void convert(const Options& options) {
  const std::string& to = options.required("--to");
  ExportOptions output;
  output.type = parse_type(options.find("--dtype"));
  if (const auto size = options.find("--max-shard-size")) {
    output.max_shard_bytes = static_cast<uint64_t>(parse_bytes(*size, "--max-shard-size"));
    if (output.max_shard_bytes == 0) input_error("--max-shard-size: 0 bytes hold nothing");
  }
  const auto source = open_model_source(options.required("--from"));
  output.tokenizer = options.find("--tokenizer").value_or(source->tokenizer());
  const Model model(source->config(), 1);
  const auto parameters = parameters_of(model);
  source->check(parameters);
  save_hugging_face(*source, parameters, to, output);
  fmt::print("{}: {} with {} parameters\n", to, name_of(model.config().architecture),
             format_count(static_cast<double>(model.parameter_count())));
}

}  // namespace

int convert_command(std::span<const std::string> words) {
  return run_command({"convert", kConvertUsage}, words, [&] {
    convert(Options(words, {"--from", "--to", "--dtype", "--tokenizer", "--max-shard-size"}, {}));
  });
}

}  // namespace trainer

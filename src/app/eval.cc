#include "app/eval.h"

#include <cmath>
#include <cstdio>
#include <numbers>

#include "app/command.h"
#include "app/options.h"
#include "base/file.h"
#include "data/dataset_builder.h"
#include "data/sampler.h"

namespace trainer {
namespace {

constexpr const char* kEvalUsage = R"(usage: trainer eval --model PATH --data PREFIX [options]

Loss, perplexity and bits per byte of a model on a dataset; every token but the first is a target once.

  --model PATH            run directory, checkpoint or Hugging Face folder
  --data PREFIX           dataset PREFIX.bin, PREFIX.idx
  --tokenizer PATH        for bits per byte; default: the model's own
  --sequence-length N     tokens the model sees at once (default: the model's, at most 2048)
  --micro-batch-size N    sequences at a time (default 4)
  --threads N             (default: all cores)
  --precision fp32|bf16   (default fp32)
  --json                  one JSON object on standard output
)";

// Bytes of text behind the targets of consecutive samples.
class ByteCounter {
 public:
  explicit ByteCounter(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}
  void add(std::span<const int32_t> labels) {
    if (!tokenizer_) return;
    std::vector<int32_t> targets;
    for (int32_t label : labels)
      if (label != kIgnoredLabel) targets.push_back(label);
    if (targets.empty()) return;
    bytes_ += count_text_bytes(*tokenizer_, targets, continues_);
    continues_ = targets.back() != tokenizer_->eod();
  }
  uint64_t bytes() const { return bytes_; }

 private:
  const Tokenizer* tokenizer_;
  uint64_t bytes_ = 0;
  bool continues_ = true;  // the first token of the dataset is no target
};

void run(const Options& options) {
  const auto source = open_model_source(options.required("--model"));
  std::string tokenizer_path = options.find("--tokenizer").value_or(source->tokenizer());
  const auto tokenizer = tokenizer_path.empty() ? nullptr : load_tokenizer(tokenizer_path);
  const auto kernels = make_host_kernels(static_cast<int>(options.integer("--threads", 0, 0)));
  const std::string precision = options.find("--precision").value_or("fp32");
  if (precision != "fp32" && precision != "bf16")
    input_error("--precision: expected fp32 or bf16, found '{}'", precision);
  const int64_t longest = source->config().max_position_embeddings;
  const int64_t sequence = options.integer("--sequence-length", std::min<int64_t>(longest, 2048), 1);
  DataConfig data;
  data.sources.push_back({options.required("--data"), std::nullopt});
  data.split = "0,1,0";
  data.sequence_length = sequence;
  data.samples.vocab_size = source->config().vocabulary_size;
  if (tokenizer) data.samples.eod = tokenizer->eod();
  const auto samples = DatasetBuilder(data).evaluation(Split::kValid);
  const LoadedModel loaded =
      load_model(*source, *kernels, precision == "bf16" ? DType::kBF16 : DType::kF32, sequence);
  const Evaluation e =
      evaluate(loaded, *kernels, samples, options.integer("--micro-batch-size", 4, 1), tokenizer.get());
  if (options.has("--json")) {
    Json json;
    json["loss"] = e.loss();
    json["perplexity"] = std::exp(e.loss());
    json["tokens"] = e.tokens;
    if (e.text_bytes > 0) {
      json["text_bytes"] = e.text_bytes;
      json["bits_per_byte"] = e.bits_per_byte();
    }
    std::printf("%s\n", json.dump().c_str());
  } else {
    std::printf("loss %.4f nats per token, perplexity %.3f, %lld tokens\n", e.loss(), std::exp(e.loss()),
                static_cast<long long>(e.tokens));
    if (e.text_bytes > 0)
      std::printf("%.4f bits per byte over %llu bytes of text\n", e.bits_per_byte(),
                  static_cast<unsigned long long>(e.text_bytes));
  }
}

}  // namespace

double Evaluation::bits_per_byte() const {
  return text_bytes > 0 ? loss_sum / std::numbers::ln2 / static_cast<double>(text_bytes) : 0;
}

Evaluation evaluate(const LoadedModel& loaded, KernelSet& kernels, std::shared_ptr<const SampleSource> source,
                    int64_t micro_batch, const Tokenizer* tokenizer) {
  const Model& model = loaded.model;
  const DType dtype = loaded.weights.front().dtype;
  const int64_t sequence = source->sequence_length(), tokens = micro_batch * sequence;
  int64_t temporary = 0;
  for (int l = 0; l < model.layer_count(); ++l)
    temporary = std::max(temporary, model.layer(l).catalogue(micro_batch, sequence, dtype).temporary_bytes);
  const auto activation =
      (tokens * model.config().hidden_size * static_cast<int64_t>(size_of(dtype)) + 63) / 64 * 64;
  const auto workspace =
      static_cast<int64_t>(kernels.workspace_bytes(model.workspace_shape(micro_batch, sequence, dtype)));
  Arena arena(static_cast<size_t>(2 * activation + (temporary + 63) / 64 * 64 + workspace));
  std::byte* base = arena.bytes().data();
  Ref x{base, dtype}, y{base + activation, dtype};
  const std::span<std::byte> scratch{base + 2 * activation, static_cast<size_t>(temporary)};
  kernels.grant_workspace(
      {base + 2 * activation + (temporary + 63) / 64 * 64, static_cast<size_t>(workspace)});

  SamplerConfig config;
  config.micro_batch_size = config.global_batch_size = micro_batch;
  config.pad_past_end = true;
  const int64_t batches = (source->size() + micro_batch - 1) / micro_batch;
  const Sampler sampler(std::move(source), config);
  Evaluation evaluation;
  ByteCounter bytes(tokenizer);
  Batch batch;
  for (int64_t b = 0; b < batches; ++b) {
    sampler.fetch(b * micro_batch, 0, batch);
    for (int l = 0; l < model.layer_count(); ++l) {
      LayerCall call{.kernels = kernels,
                     .batch = {batch.micro_batch,
                               batch.sequence,
                               batch.tokens.data(),
                               batch.labels.data(),
                               batch.positions.data(),
                               {batch.segment_starts.data(), batch.segment_starts.size() - 1}},
                     .weights = loaded.weights[static_cast<size_t>(l)],
                     .shared_weights = loaded.weights.front(),
                     .saved = {},
                     .temporary = scratch};
      const bool head = l == model.layer_count() - 1;
      const ClassifierResult result =
          model.layer(l).forward(call, l == 0 ? Ref{nullptr, dtype} : x, head ? Ref{nullptr, dtype} : y);
      evaluation.loss_sum += result.loss_sum;
      evaluation.tokens += result.valid_tokens;
      std::swap(x, y);
    }
    bytes.add(batch.labels);
  }
  evaluation.text_bytes = bytes.bytes();
  return evaluation;
}

int eval_command(std::span<const std::string> arguments) {
  return run_command({"eval", kEvalUsage}, arguments, [&] {
    run(Options(arguments,
                {"--model", "--data", "--tokenizer", "--sequence-length", "--micro-batch-size", "--threads",
                 "--precision"},
                {"--json"}));
  });
}

}  // namespace trainer

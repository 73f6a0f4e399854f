#include "app/generate.h"

#include <algorithm>
#include <cstdio>

#include "app/command.h"
#include "app/loaded_model.h"
#include "app/options.h"
#include "app/sampling.h"
#include "data/tokenizer.h"
#include "data/utf8.h"
#include "model/inference.h"
#include "ops/kernel_set.h"

namespace trainer {
namespace {

constexpr const char* kGenerateUsage =
    R"(usage: trainer generate --model MODEL --prompt TEXT [options]

Prints the prompt and what the model writes after it.

  --model MODEL            a Hugging Face folder, a run directory (its newest good checkpoint), or one of its
                           checkpoints
  --prompt TEXT            what the text begins with; may be empty
  --max-new-tokens N       default: 128; the text ends sooner when the model ends the document
  --temperature T          0 takes the most likely token each time (default: 1)
  --top-k K                sample from the K most likely tokens only (default: 0, all)
  --top-p P                sample from the most likely tokens that together have probability P (default: 1)
  --seed S                 the same seed gives the same text (default: 1234)
  --tokenizer PATH         default: the model's own
  --precision fp32|bf16    default: fp32
  --threads N              default: the cores this process may use
)";

// Writes text to standard output as its tokens come, never half a character.
class TextStream {
 public:
  void add(std::string_view bytes) {
    pending_ += bytes;
    const size_t whole = pending_.size() - unfinished(pending_);
    print(replace_invalid_utf8(std::string_view(pending_).substr(0, whole)));
    pending_.erase(0, whole);
  }
  void finish() {
    print(replace_invalid_utf8(pending_) + "\n");
    pending_.clear();
  }

 private:
  // Bytes at the end that begin a character whose rest may still come.
  static size_t unfinished(std::string_view text) {
    for (size_t n = 1; n <= std::min<size_t>(3, text.size()); ++n) {
      const auto byte = static_cast<unsigned char>(text[text.size() - n]);
      if (byte < 0x80) return 0;
      if (byte >= 0xC0) return n < (byte >= 0xF0 ? 4u : byte >= 0xE0 ? 3u : 2u) ? n : 0;
    }
    return 0;
  }
  static void print(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  std::string pending_;
};

DType parse_precision(const std::string& text) {
  if (text == "fp32") return DType::kF32;
  if (text == "bf16") return DType::kBF16;
  input_error("--precision: expected fp32 or bf16, found '{}'", text);
}

SamplingOptions sampling_options(const Options& options) {
  const SamplingOptions sampling{.temperature = options.number("--temperature", 1, 0),
                                 .top_k = options.integer("--top-k", 0, 0),
                                 .top_p = options.number("--top-p", 1, 0)};
  if (sampling.top_p > 1) input_error("--top-p: a probability is at most 1");
  return sampling;
}

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& prompt,
                                   int64_t vocabulary) {
  std::vector<int32_t> tokens = tokenizer.encode(prompt, {.allow_special = true, .add_special = true});
  if (tokens.empty()) {
    const auto start = tokenizer.bos() ? tokenizer.bos() : tokenizer.eod();
    if (!start) input_error("--prompt is empty, and the tokenizer has no token that begins a text");
    tokens.push_back(*start);
  }
  for (int32_t token : tokens)
    if (token >= vocabulary)
      input_error("the tokenizer gives token {}, the model knows {} tokens: they do not belong together",
                  token, vocabulary);
  return tokens;
}

void generate(const Options& options) {
  const SamplingOptions sampling = sampling_options(options);
  const DType dtype = parse_precision(options.find("--precision").value_or("fp32"));
  const int64_t wanted = options.integer("--max-new-tokens", 128, 0);
  TokenSampler sampler(sampling, static_cast<uint64_t>(options.integer("--seed", 1234, 0)));
  const std::string& prompt = options.required("--prompt");
  const auto source = open_model_source(options.required("--model"));
  const ModelConfig& config = source->config();
  const std::string tokenizer_path = options.find("--tokenizer").value_or(source->tokenizer());
  if (tokenizer_path.empty()) input_error("the model names no tokenizer: give --tokenizer");
  const auto tokenizer = load_tokenizer(tokenizer_path);

  std::vector<int32_t> tokens = encode_prompt(*tokenizer, prompt, config.vocabulary_size);
  const auto prompt_length = static_cast<int64_t>(tokens.size());
  if (prompt_length >= config.max_position_embeddings)
    input_error("the prompt has {} tokens, the model's longest text {}", prompt_length,
                config.max_position_embeddings);
  const int64_t length = std::min(prompt_length + wanted, config.max_position_embeddings);
  if (length < prompt_length + wanted)
    log_warning("{} new tokens instead of {}: the model's longest text has {}", length - prompt_length,
                wanted, config.max_position_embeddings);

  const auto kernels = make_host_kernels(static_cast<int>(options.integer("--threads", 0, 1)));
  const LoadedModel loaded = load_model(*source, *kernels, dtype, length);
  Decoder decoder(loaded.model, *kernels, loaded.weights, length);
  // Rows of the embedding that no token has take no part.
  const auto known =
      static_cast<size_t>(std::min<int64_t>(config.vocabulary_size, tokenizer->vocabulary_size()));

  TextStream text;
  text.add(prompt);
  std::span<const int32_t> next = tokens;
  for (int64_t position = prompt_length; position < length; ++position) {
    const std::vector<float> logits = decoder.step(next);
    const int32_t token = sampler.sample(std::span(logits).first(known), position);
    if (token == tokenizer->eos() || token == tokenizer->eod()) break;
    text.add(tokenizer->decode_bytes({&token, 1}, true));
    tokens.assign(1, token);
    next = tokens;
  }
  text.finish();
}

}  // namespace

int generate_command(std::span<const std::string> words) {
  return run_command({"generate", kGenerateUsage}, words, [&] {
    generate(Options(words,
                     {"--model", "--prompt", "--max-new-tokens", "--temperature", "--top-k", "--top-p",
                      "--seed", "--tokenizer", "--precision", "--threads"},
                     {}));
  });
}

}  // namespace trainer

#include "data/text_pipeline.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "data/utf8.h"

namespace trainer {
namespace {

constexpr size_t kLinesBatchBytes = size_t{1} << 20;
constexpr uint64_t kBatchesPerWorker = 4;  // that may be under way or wait for earlier ones

struct EncodedPart {
  size_t token_count;
  bool ends_document;
};

struct EncodedBatch {
  std::vector<int32_t> tokens;
  std::vector<EncodedPart> parts;
  uint64_t bytes_read = 0, text_bytes = 0;
  std::exception_ptr error;
};

[[noreturn]] void fail_at(const TextBatch& batch, const DocumentPart& part, const InputError& error) {
  const size_t bad = first_invalid_utf8(part.text);
  if (bad == std::string_view::npos) input_error("{}:{}: {}", *batch.file, part.line, error.what());
  const auto before = part.text.substr(0, bad);
  input_error("{}:{}: the text is not UTF-8 (byte 0x{:02x}); convert the file, or use the byte tokenizer",
              *batch.file, part.line + static_cast<uint64_t>(std::count(before.begin(), before.end(), '\n')),
              static_cast<uint8_t>(part.text[bad]));
}

EncodedBatch encode_batch(const Tokenizer& tokenizer, const TextPipelineOptions& options,
                          const TextBatch& batch) {
  EncodedBatch result;
  result.bytes_read = batch.text.size();
  for_each_document(batch, options.format, options.json_key, [&](const DocumentPart& part) {
    const size_t before = result.tokens.size();
    try {
      encode_document(tokenizer, part.text, part.continues, result.tokens);
    } catch (const InputError& error) {
      fail_at(batch, part, error);
    }
    result.text_bytes += part.text.size();
    result.parts.push_back({result.tokens.size() - before, part.ends_document});
  });
  return result;
}

// Batches are numbered as they are read; workers encode them, and `next` hands them out in the order of their
// numbers.
class OrderedEncoder {
 public:
  OrderedEncoder(const Tokenizer& tokenizer, const TextPipelineOptions& options)
      : tokenizer_(tokenizer),
        options_(options),
        reader_(options.files, options.format,
                options.format == TextFormat::kText ? kDocumentPartBytes : kLinesBatchBytes),
        window_(kBatchesPerWorker * static_cast<uint64_t>(options.workers)) {
    require(options.workers > 0, "tokenize_files with {} workers", options.workers);
    try {
      for (int i = 0; i < options.workers; ++i) workers_.emplace_back([this] { work(); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~OrderedEncoder() { stop(); }
  OrderedEncoder(const OrderedEncoder&) = delete;
  OrderedEncoder& operator=(const OrderedEncoder&) = delete;

  uint64_t total_bytes() const { return reader_.total_bytes(); }

  // False after the last batch. Rethrows what went wrong in making the batch.
  bool next(EncodedBatch& batch) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_.contains(handed_out_) || (exhausted_ && handed_out_ == read_); });
    const auto found = done_.find(handed_out_);
    if (found == done_.end()) return false;
    batch = std::move(found->second);
    done_.erase(found);
    ++handed_out_;
    lock.unlock();
    changed_.notify_all();
    if (batch.error) std::rethrow_exception(batch.error);
    return true;
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stopped_ || exhausted_ || read_ < handed_out_ + window_; });
      if (stopped_ || exhausted_) return;
      TextBatch batch;
      EncodedBatch encoded;
      try {
        exhausted_ = !reader_.next(batch);
      } catch (...) {
        encoded.error = std::current_exception();
        exhausted_ = true;
      }
      if (exhausted_ && encoded.error) done_[read_++] = std::move(encoded);
      if (exhausted_) {
        changed_.notify_all();
        return;
      }
      const uint64_t number = read_++;
      lock.unlock();
      try {
        encoded = encode_batch(tokenizer_, options_, batch);
      } catch (...) {
        encoded.error = std::current_exception();
      }
      lock.lock();
      done_[number] = std::move(encoded);
      changed_.notify_all();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  const Tokenizer& tokenizer_;
  const TextPipelineOptions& options_;
  TextReader reader_;
  uint64_t window_;
  std::mutex mutex_;  // guards all below, and the reader
  std::condition_variable changed_;
  std::map<uint64_t, EncodedBatch> done_;
  uint64_t read_ = 0, handed_out_ = 0;
  bool exhausted_ = false, stopped_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace

void encode_document(const Tokenizer& tokenizer, std::string_view text, bool continues,
                     std::vector<int32_t>& tokens) {
  while (!text.empty()) {
    const size_t size =
        text.size() > kDocumentPartBytes ? document_cut(text, kDocumentPartBytes) : text.size();
    const auto part = tokenizer.encode(text.substr(0, size), {.continues = continues});
    tokens.insert(tokens.end(), part.begin(), part.end());
    text.remove_prefix(size);
    continues = true;
  }
}

TextPipelineCounts tokenize_files(const Tokenizer& tokenizer, const TextPipelineOptions& options,
                                  IndexedDatasetWriter& writer,
                                  const std::function<void(const TextPipelineCounts&)>& progress) {
  OrderedEncoder encoder(tokenizer, options);
  TextPipelineCounts counts{.total_bytes = encoder.total_bytes()};
  const int64_t documents_before = writer.documents(), tokens_before = writer.tokens();
  EncodedBatch batch;
  while (encoder.next(batch)) {
    std::span<const int32_t> left = batch.tokens;
    for (const EncodedPart& part : batch.parts) {
      writer.add_tokens(left.first(part.token_count));
      left = left.subspan(part.token_count);
      if (part.ends_document && !writer.end_document()) ++counts.empty_documents;
    }
    counts.bytes_read += batch.bytes_read;
    counts.text_bytes += batch.text_bytes;
    counts.documents = static_cast<uint64_t>(writer.documents() - documents_before);
    counts.tokens = static_cast<uint64_t>(writer.tokens() - tokens_before);
    if (progress) progress(counts);
  }
  return counts;
}

}  // namespace trainer

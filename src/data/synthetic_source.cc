#include "data/synthetic_source.h"

#include "base/hash.h"

namespace trainer {
namespace {

// Streams of random numbers: the table's, then one per sample.
constexpr uint64_t kTable = 0, kFirstSample = 1;

}  // namespace

SyntheticSource::SyntheticSource(int64_t sequence_length, int64_t vocabulary, int64_t seed, int64_t first,
                                 int64_t size)
    : random_(static_cast<uint64_t>(seed)),
      sequence_(sequence_length),
      vocabulary_(vocabulary),
      seed_(seed),
      first_(first),
      size_(size) {}

int32_t SyntheticSource::token(uint64_t counter, uint64_t stream) const {
  return static_cast<int32_t>(random_.block(counter, stream)[0] % static_cast<uint64_t>(vocabulary_));
}

void SyntheticSource::fetch(int64_t index, Sample& sample) const {
  const auto n = static_cast<size_t>(sequence_);
  const uint64_t stream = kFirstSample + static_cast<uint64_t>(first_ + index);
  sample.tokens.resize(n);
  sample.labels.resize(n);
  sample.positions.resize(n);
  sample.document_starts.clear();
  sample.valid_tokens = sequence_;
  int32_t current = token(0, stream);
  for (size_t i = 0; i < n; ++i) {
    const bool by_table = random_.block(i + 1, stream)[1] % 4 != 0;
    const int32_t next = by_table ? token(static_cast<uint64_t>(current), kTable) : token(i + 1, stream);
    sample.tokens[i] = current;
    sample.labels[i] = next;
    sample.positions[i] = static_cast<int32_t>(i);
    current = next;
  }
}

uint64_t SyntheticSource::fingerprint() const {
  return Hasher().add(kSyntheticData).add(sequence_).add(vocabulary_).add(seed_).add(first_).value();
}

}  // namespace trainer

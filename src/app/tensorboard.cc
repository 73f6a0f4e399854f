#include "app/tensorboard.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "app/metrics.h"
#include "base/error.h"

namespace trainer {
namespace {

static_assert(std::endian::native == std::endian::little, "records and messages are little-endian");

// CRC-32C, reflected, with the rotation and offset that the record format asks for.
uint32_t masked_checksum(std::string_view data) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> entries{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0x82F63B78u : 0u);
      entries[i] = value;
    }
    return entries;
  }();
  uint32_t crc = ~0u;
  for (const char c : data) crc = crc >> 8 ^ table[(crc ^ static_cast<uint8_t>(c)) & 0xFF];
  return std::rotr(~crc, 15) + 0xA282EAD8u;
}

template <class T>
std::string bytes_of(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// A protocol-buffer message under construction.
class Message {
 public:
  Message& varint(int field, uint64_t value) { return raw(uint32_t(field) << 3 | 0).number(value); }
  Message& float64(int field, double value) { return raw(uint32_t(field) << 3 | 1).append(bytes_of(value)); }
  Message& float32(int field, float value) { return raw(uint32_t(field) << 3 | 5).append(bytes_of(value)); }
  Message& text(int field, std::string_view value) {
    return raw(uint32_t(field) << 3 | 2).number(value.size()).append(value);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  Message& raw(uint32_t key) { return number(key); }
  Message& number(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
    bytes_.push_back(static_cast<char>(value));
    return *this;
  }
  Message& append(std::string_view bytes) {
    bytes_.append(bytes);
    return *this;
  }
  std::string bytes_;
};

double seconds_since_epoch() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// tensorflow.Event: wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7.
Message event(int64_t step) {
  Message message;
  message.float64(1, seconds_since_epoch()).varint(2, static_cast<uint64_t>(step));
  return message;
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& directory, int64_t first_step) {
  static std::atomic<int> counter{0};
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  // TensorBoard reads a directory's files in the order of their names, so the time comes first.
  path_ = directory / fmt::format("events.out.tfevents.{:010}.{}.{}.{}",
                                  static_cast<int64_t>(seconds_since_epoch()), host, ::getpid(), counter++);
  file_.open(path_, std::ios::binary | std::ios::trunc);
  if (!file_) run_error("cannot create {}: {}", path_.string(), std::strerror(errno));
  record(event(0).text(3, "brain.Event:2").bytes());
  // SessionLog { status = START }: what was logged from this step on belongs to a run that was cut off.
  record(event(first_step).text(7, Message().varint(1, 1).bytes()).bytes());
  flush();
}

void TensorBoardWriter::scalar(std::string_view tag, int64_t step, double value) {
  // Summary { value { tag = 1, simple_value = 2 } }
  const Message entry = Message().text(1, tag).float32(2, static_cast<float>(value));
  record(event(step).text(5, Message().text(1, entry.bytes()).bytes()).bytes());
}

void TensorBoardWriter::record(const std::string& event) {
  const std::string length = bytes_of(static_cast<uint64_t>(event.size()));
  file_ << length << bytes_of(masked_checksum(length)) << event << bytes_of(masked_checksum(event));
}

void TensorBoardWriter::flush() {
  file_.flush();
  if (!file_) run_error("cannot write {}: {}", path_.string(), std::strerror(errno));
}

void write_step(TensorBoardWriter& writer, const StepMetrics& m) {
  const auto scalar = [&](const std::string& tag, double value) { writer.scalar(tag, m.step, value); };
  scalar("train/loss", m.loss);
  scalar("train/grad_norm", m.grad_norm);
  scalar("train/learning_rate", m.learning_rate);
  scalar("train/skipped", m.skipped ? 1 : 0);
  scalar("train/consumed_samples", static_cast<double>(m.consumed_samples));
  scalar("speed/tokens_per_second", m.tokens_per_second);
  scalar("speed/step_seconds", m.step_seconds);
  scalar("waiting/bubble", m.exposed.bubble);
  scalar("waiting/boundary", m.exposed.boundary);
  scalar("waiting/grad_sync", m.exposed.grad_sync);
  scalar("waiting/update", m.exposed.update);
  scalar("waiting/prefetch", m.exposed.prefetch);
  scalar("waiting/recovery", m.exposed.recovery);
  for (int tier = 0; tier < kTierCount; ++tier)
    scalar(fmt::format("memory/{}", name_of(static_cast<Tier>(tier))),
           static_cast<double>(m.memory[static_cast<size_t>(tier)]));
  if (m.valid_loss) scalar("valid/loss", *m.valid_loss);
  writer.flush();
}

}  // namespace trainer

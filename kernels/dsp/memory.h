// Memories that software manages: named, of fixed capacity, filled by allocation in order, moved between by
// DMA.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/half.h"
#include "dsp/machine.h"

namespace trainer::dsp {

class Memory;

// A matrix of fp16 inside one memory, [rows, columns], `stride` elements from row to row. Does not own it.
struct Block {
  Memory* memory = nullptr;
  int64_t offset = 0;  // bytes from the memory's begin
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;

  Block part(int64_t row, int64_t column, int64_t part_rows, int64_t part_columns) const {
    return {memory, offset + (row * stride + column) * kHalfBytes, part_rows, part_columns, stride};
  }
  // Only where the memory keeps values; `set` rounds to fp16.
  float get(int64_t row, int64_t column) const;
  void set(int64_t row, int64_t column, float value) const;
  void fill(float value) const;
};

class Memory {
 public:
  // `keeps_values`: false to count only.
  Memory(std::string name, int64_t capacity, bool keeps_values)
      : name_(std::move(name)), capacity_(capacity), keeps_values_(keeps_values) {}

  // A block of zeros for `what`. Throws InputError that names the memory, the bytes asked for and the bytes
  // free.
  Block allocate(const std::string& what, int64_t rows, int64_t columns);

  const std::string& name() const { return name_; }
  int64_t free_bytes() const { return capacity_ - used_; }
  bool keeps_values() const { return keeps_values_; }
  uint16_t& half(int64_t offset) { return halves_[static_cast<size_t>(offset / kHalfBytes)]; }

 private:
  std::string name_;
  int64_t capacity_;
  bool keeps_values_;
  int64_t used_ = 0;
  std::vector<uint16_t> halves_;
};

inline float Block::get(int64_t row, int64_t column) const {
  return half_to_float(memory->half(offset + (row * stride + column) * kHalfBytes));
}
inline void Block::set(int64_t row, int64_t column, float value) const {
  memory->half(offset + (row * stride + column) * kHalfBytes) = float_to_half(value);
}

// Row-major; the first rounds to fp16. Not DMA: how operands come into DDR and results out of it.
void write_values(std::span<const float> values, const Block& to);
std::vector<float> read_values(const Block& from);

// What one DMA does to the values: `to` becomes `from`, which has as many rows and columns. Throws InputError
// where an address, a row or a distance of rows is no multiple of the machine's alignment; it names the
// memory, the offset and the bytes.
void move(const Machine& machine, const Block& from, const Block& to);
// The same with rows and columns exchanged on the way.
void move_transposed(const Machine& machine, const Block& from, const Block& to);

}  // namespace trainer::dsp

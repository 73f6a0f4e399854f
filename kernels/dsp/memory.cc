#include "dsp/memory.h"

#include "base/error.h"

namespace trainer::dsp {
namespace {

void check_aligned(const Machine& machine, const Block& block) {
  const int64_t bytes = block.columns * kHalfBytes, alignment = machine.dma_alignment;
  if (block.offset % alignment != 0 || bytes % alignment != 0)
    input_error("{}: DMA at offset {} of {} bytes a row is not aligned to {} bytes", block.memory->name(),
                block.offset, bytes, alignment);
  if (block.rows > 1 && block.stride * kHalfBytes % alignment != 0)
    input_error("{}: DMA at offset {}: rows {} bytes apart are not aligned to {} bytes", block.memory->name(),
                block.offset, block.stride * kHalfBytes, alignment);
}

bool both_keep_values(const Block& from, const Block& to) {
  return from.memory->keeps_values() && to.memory->keeps_values();
}

}  // namespace

Block Memory::allocate(const std::string& what, int64_t rows, int64_t columns) {
  const int64_t bytes = rows * columns * kHalfBytes;
  if (bytes > free_bytes())
    input_error("{}: {} needs {} bytes, {} of {} are free; choose a smaller tile", name_, what, bytes,
                free_bytes(), capacity_);
  const Block block{this, used_, rows, columns, columns};
  used_ += bytes;
  if (keeps_values_) halves_.resize(static_cast<size_t>(used_ / kHalfBytes));
  return block;
}

void Block::fill(float value) const {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column) set(row, column, value);
}

void write_values(std::span<const float> values, const Block& to) {
  require(std::ssize(values) == to.rows * to.columns, "operand of another shape");
  for (int64_t row = 0; row < to.rows; ++row)
    for (int64_t column = 0; column < to.columns; ++column)
      to.set(row, column, values[static_cast<size_t>(row * to.columns + column)]);
}

std::vector<float> read_values(const Block& from) {
  std::vector<float> values;
  for (int64_t row = 0; row < from.rows; ++row)
    for (int64_t column = 0; column < from.columns; ++column) values.push_back(from.get(row, column));
  return values;
}

void move(const Machine& machine, const Block& from, const Block& to) {
  require(from.rows == to.rows && from.columns == to.columns, "DMA between blocks of different shapes");
  check_aligned(machine, from);
  check_aligned(machine, to);
  if (!both_keep_values(from, to)) return;
  for (int64_t row = 0; row < from.rows; ++row)
    for (int64_t column = 0; column < from.columns; ++column) to.set(row, column, from.get(row, column));
}

void move_transposed(const Machine& machine, const Block& from, const Block& to) {
  require(from.rows == to.columns && from.columns == to.rows,
          "transposing DMA between blocks of other shapes");
  check_aligned(machine, from);
  check_aligned(machine, to);
  if (!both_keep_values(from, to)) return;
  for (int64_t row = 0; row < from.rows; ++row)
    for (int64_t column = 0; column < from.columns; ++column) to.set(column, row, from.get(row, column));
}

}  // namespace trainer::dsp

// The software-pipelined inner loop of a tile product, in instruction words of eight slots.
#pragma once

#include <array>
#include <cstdint>

#include "dsp/machine.h"
#include "dsp/memory.h"

namespace trainer::dsp {

// Slots of an instruction word; all eight issue together, one word a cycle (RATrain, table 1).
enum class Slot { kVmac, kSmac1, kSmac2, kSldst, kVldst1, kVldst2, kSieu, kSbr };
inline constexpr int kSlots = 8;

// How often each slot is used in one step along the depth of a register tile of `rows` x `vectors`
// accumulators: a vfmulas32 for each accumulator; sldh, smvaga and svbcast for each element of the left
// operand; vldw for each vector of the right one, in either of two slots; seq and sbr once.
std::array<int64_t, kSlots> slot_uses(int64_t rows, int64_t vectors);

// Cycles of one DSP for C[rows, columns] += A[rows, depth] B[depth, columns], A in SM, B and C in AM. The
// tile is cut into register tiles of the best shape; each loads its accumulators, runs `depth` steps of as
// many words as its busiest slot needs and the stalls, and stores its accumulators.
int64_t multiply_cycles(const Machine& machine, int64_t rows, int64_t depth, int64_t columns);

// The values of the same: products of fp16 are added to fp32 accumulators in the order of the depth; C is
// rounded to fp16 when it is stored.
void multiply(const Block& a, const Block& b, const Block& c);

// Cycles of an element-wise pass of `operations` vector instructions for every vector of [rows, columns].
int64_t vector_cycles(const Machine& machine, int64_t rows, int64_t columns, int64_t operations);

}  // namespace trainer::dsp

// Memories, DMA channels and the inner loop, against numbers worked out by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "base/error.h"
#include "dsp/inner_loop.h"
#include "dsp/memory.h"
#include "dsp/timeline.h"

namespace trainer::dsp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no InputError";
}

TEST(DspMemory, RefusesWhatDoesNotFit) {
  Memory memory("AM of DSP 3", 1000, false);
  memory.allocate("C_2", 10, 30);
  EXPECT_EQ(memory.free_bytes(), 400);
  EXPECT_THAT(
      message_of([&] { memory.allocate("B_2", 11, 19); }),
      AllOf(HasSubstr("AM of DSP 3"), HasSubstr("B_2 needs 418 bytes"), HasSubstr("400 of 1000 are free")));
  EXPECT_EQ(memory.free_bytes(), 400);
  memory.allocate("B_2", 10, 20);
  EXPECT_EQ(memory.free_bytes(), 0);
}

TEST(DspMemory, RefusesUnalignedDma) {
  const Machine machine;  // 32 bytes
  Memory from("DDR", 1 << 20, false), to("GSM", 1 << 20, false);
  const Block a = from.allocate("A", 64, 64), b = to.allocate("B", 64, 64);
  move(machine, a.part(1, 16, 2, 32), b.part(0, 0, 2, 32));
  EXPECT_THAT(message_of([&] { move(machine, a.part(0, 8, 2, 32), b.part(0, 0, 2, 32)); }),
              AllOf(HasSubstr("DDR"), HasSubstr("offset 16 of 64 bytes"), HasSubstr("aligned to 32 bytes")));
  EXPECT_THAT(message_of([&] { move(machine, a.part(0, 0, 2, 24), b.part(0, 16, 2, 24)); }),
              AllOf(HasSubstr("DDR"), HasSubstr("offset 0 of 48 bytes")));
  EXPECT_THAT(message_of([&] { move(machine, a.part(0, 0, 2, 32), b.part(1, 1, 2, 32)); }),
              AllOf(HasSubstr("GSM"), HasSubstr("offset 130 of 64 bytes")));
  const Block odd = to.allocate("odd rows", 4, 40);
  EXPECT_THAT(message_of([&] { move(machine, odd.part(0, 0, 2, 16), b.part(0, 0, 2, 16)); }),
              AllOf(HasSubstr("GSM"), HasSubstr("80 bytes apart")));
}

TEST(DspMemory, HoldsHalves) {
  const Machine machine;
  Memory memory("AM", 1 << 10, true);
  const Block a = memory.allocate("A", 16, 16), b = memory.allocate("B", 16, 16);
  a.set(1, 2, 1.0f + 0x1p-12f);
  EXPECT_EQ(a.get(1, 2), 1.0f);
  a.set(3, 4, 2049.0f);
  move_transposed(machine, a, b);
  EXPECT_EQ(b.get(2, 1), 1.0f);
  EXPECT_EQ(b.get(4, 3), 2048.0f);
  EXPECT_EQ(b.get(1, 2), 0.0f);
}

// A channel that moves 10 bytes a cycle.
Machine timed_machine() {
  Machine machine;
  machine.ddr_bytes_per_second = 10 * machine.clock_hz();
  machine.on_chip_bytes_per_second = 100 * machine.clock_hz();
  machine.ddr_start_cycles = 50;
  machine.on_chip_start_cycles = 30;
  return machine;
}

TEST(DspTimeline, ChannelsServeInOrder) {
  Timeline timeline(timed_machine());
  EXPECT_EQ(timeline.transfer(Channel::kDdr, 1000, 0), 150);
  EXPECT_EQ(timeline.transfer(Channel::kDdr, 1000, 0), 250);    // starts up under the first
  EXPECT_EQ(timeline.transfer(Channel::kDdr, 10, 1000), 1051);  // waits for its time
  EXPECT_EQ(timeline.transfer(Channel::kDdr, 10, 0), 1052);     // behind it
  EXPECT_EQ(timeline.transfer(Channel::kOnChip, 1000, 0), 40);  // another channel
  const Count count = timeline.count();
  EXPECT_EQ(count.cycles, 1052);
  EXPECT_EQ(count.ddr_cycles, 202);
  EXPECT_EQ(count.ddr_bytes, 2020);
  EXPECT_EQ(count.on_chip_bytes, 1000);
}

TEST(DspTimeline, TwoBuffersHideTheShorterOfLoadAndCompute) {
  for (const auto& [compute, expected] :
       {std::pair<int64_t, int64_t>{200, 150 + 10 * 200}, {30, 50 + 10 * 100 + 30}}) {
    Timeline timeline(timed_machine());
    std::array<int64_t, 2> computed{};
    for (size_t s = 0; s < 10; ++s) {
      // Asked for 50 cycles before the buffer is free, so that starting up is hidden as well.
      const int64_t loaded = timeline.transfer(Channel::kDdr, 1000, s < 2 ? 0 : computed[s % 2] - 50);
      computed[s % 2] = timeline.compute(compute, loaded);
    }
    EXPECT_EQ(timeline.count().cycles, expected);
    EXPECT_EQ(timeline.count().compute_cycles, 10 * compute);
  }
}

TEST(DspInnerLoop, BusiestSlotCounts) {
  const auto uses = slot_uses(8, 4);
  EXPECT_EQ(uses[static_cast<size_t>(Slot::kVmac)], 32);
  EXPECT_EQ(uses[static_cast<size_t>(Slot::kSldst)], 8);
  EXPECT_EQ(uses[static_cast<size_t>(Slot::kVldst1)], 2);
  EXPECT_EQ(uses[static_cast<size_t>(Slot::kSbr)], 1);

  Machine machine;
  machine.stall_words = 0;
  machine.vector_latency = 16;
  // One register tile of 8 x 4 vectors: 32 words for each step, 32 accumulators loaded and stored, two at a
  // time.
  EXPECT_EQ(multiply_cycles(machine, 8, 100, 4 * machine.lanes), 100 * 32 + 32 + 16);
  machine.stall_words = 9;
  EXPECT_EQ(multiply_cycles(machine, 8, 100, 4 * machine.lanes), 100 * 41 + 32 + 16);
  // Part of a vector takes a whole one's time.
  EXPECT_EQ(multiply_cycles(machine, 8, 100, 3 * machine.lanes + 16), 100 * 41 + 32 + 16);
}

}  // namespace
}  // namespace trainer::dsp

#include "runtime/waiting.h"

#include <gtest/gtest.h>

namespace trainer {
namespace {

void expect_exposed(const ExposedTime& e, double bubble, double boundary, double grad_sync, double update,
                    double prefetch, double recovery) {
  EXPECT_DOUBLE_EQ(e.bubble, bubble);
  EXPECT_DOUBLE_EQ(e.boundary, boundary);
  EXPECT_DOUBLE_EQ(e.grad_sync, grad_sync);
  EXPECT_DOUBLE_EQ(e.update, update);
  EXPECT_DOUBLE_EQ(e.prefetch, prefetch);
  EXPECT_DOUBLE_EQ(e.recovery, recovery);
}

constexpr bool kForward = true, kBackward = false;

// exposed: boundary, grad_sync, update, prefetch, recovery.
TEST(WaitLedger, TheKindOfTheLastArrivalIsTheCause) {
  WaitLedger ledger;
  ledger.waited(1, TaskKind::kGradSync, 10, 11);
  ledger.waited(1, TaskKind::kNormSync, 11, 11.5);
  ledger.waited(1, TaskKind::kUpdateShard, 20, 22);
  ledger.waited(1, TaskKind::kPrefetchWeights, 30, 33);
  ledger.waited(1, TaskKind::kRecover, 40, 44);
  ledger.waited(1, TaskKind::kReload, 44, 44.25);
  ledger.waited(1, TaskKind::kSend, 50, 55);
  expect_exposed(ledger.take(1).exposed, 0, 5, 1.5, 2, 3, 4.25);
  expect_exposed(ledger.take(1).exposed, 0, 0, 0, 0, 0, 0);
}

TEST(WaitLedger, WorkOnTheComputeLaneThatIsNotTheMainPathIsExposed) {
  WaitLedger ledger;
  ledger.ran(3, TaskKind::kForward, 2);
  ledger.ran(3, TaskKind::kBackward, 4);
  ledger.ran(3, TaskKind::kRecover, 1);
  ledger.ran(3, TaskKind::kUpdateShard, 0.5);
  ledger.ran(4, TaskKind::kForward, 8);
  const auto account = ledger.take(3);
  EXPECT_EQ(account.main_path, 6);
  expect_exposed(account.exposed, 0, 0, 0, 0.5, 0, 1);
  EXPECT_EQ(ledger.take(4).main_path, 8);
}

// The receiver waits from 10 to 16. The sender had it at 14, having itself waited 2 for an update.
TEST(WaitLedger, TheSendersWaitingIsBookedAtItsCause) {
  WaitLedger ledger;
  ledger.arrived(kForward, 0, {14, {0, 0, 2, 0, 0}});
  ledger.waited_for_message(1, kForward, 0, 10, 16);
  expect_exposed(ledger.take(1).exposed, 2, 2, 0, 2, 0, 0);
}

TEST(WaitLedger, AMessageThatWasReadyEarlyIsTheTransfersFault) {
  WaitLedger ledger;
  ledger.arrived(kForward, 0, {9, {0, 5, 5, 0, 0}});
  ledger.waited_for_message(1, kForward, 0, 10, 12);
  expect_exposed(ledger.take(1).exposed, 0, 2, 0, 0, 0, 0);
}

TEST(WaitLedger, LongWaitingOfTheSenderExplainsNoMoreThanWasWaitedHere) {
  WaitLedger ledger;
  ledger.arrived(kForward, 0, {14, {0, 2, 6, 0, 0}});
  ledger.waited_for_message(1, kForward, 0, 10, 14);
  expect_exposed(ledger.take(1).exposed, 0, 0, 1, 3, 0, 0);
}

TEST(WaitLedger, TrailersAreTotalsAndCountOnce) {
  WaitLedger ledger;
  ledger.arrived(kForward, 0, {12, {0, 0, 2, 0, 0}});
  ledger.waited_for_message(1, kForward, 0, 10, 12);
  expect_exposed(ledger.take(1).exposed, 0, 0, 0, 2, 0, 0);
  ledger.arrived(kForward, 1, {15, {0, 0, 2, 0, 0}});  // nothing since
  ledger.waited_for_message(2, kForward, 1, 13, 15);
  expect_exposed(ledger.take(2).exposed, 2, 0, 0, 0, 0, 0);
  ledger.arrived(kForward, 0, {21, {0, 0, 2, 1, 0}});
  ledger.waited_for_message(3, kForward, 0, 20, 21);
  expect_exposed(ledger.take(3).exposed, 0, 0, 0, 0, 1, 0);
}

TEST(WaitLedger, DirectionsHaveTheirOwnTotals) {
  WaitLedger ledger;
  ledger.arrived(kForward, 0, {12, {0, 0, 2, 0, 0}});
  ledger.arrived(kBackward, 0, {13, {0, 0, 2, 0, 0}});  // of another sender, its first
  ledger.waited_for_message(1, kForward, 0, 10, 12);
  ledger.waited_for_message(1, kBackward, 0, 11, 13);
  expect_exposed(ledger.take(1).exposed, 0, 0, 0, 4, 0, 0);
}

// Stage 0 waits 3 for an update; stage 1 and then stage 2 wait for stage 0's message.
TEST(WaitLedger, WaitingTravelsOverSeveralStages) {
  WaitLedger stage0, stage1, stage2;
  stage0.waited(1, TaskKind::kUpdateShard, 0, 3);
  const BoundaryTrailer from0 = stage0.outgoing(4);
  EXPECT_EQ(from0.ready, 4);
  stage1.arrived(kForward, 0, from0);
  stage1.waited_for_message(1, kForward, 0, 0, 4);
  expect_exposed(stage1.take(1).exposed, 1, 0, 0, 3, 0, 0);  // 1 for stage 0's own work
  stage2.arrived(kForward, 0, stage1.outgoing(5));
  stage2.waited_for_message(1, kForward, 0, 0, 5.5);
  expect_exposed(stage2.take(1).exposed, 2, 0.5, 0, 3, 0, 0);
}

TEST(WaitLedger, WhatWasWaitedForElsewhereButNotHereCostsNothing) {
  WaitLedger ledger;
  ledger.arrived(kForward, 0, {4, {0, 0, 3, 0, 0}});  // came while this rank was busy
  ledger.arrived(kForward, 1, {9, {0, 0, 3, 0, 0}});
  ledger.waited_for_message(1, kForward, 1, 8, 9);
  expect_exposed(ledger.take(1).exposed, 1, 0, 0, 0, 0, 0);
}

}  // namespace
}  // namespace trainer

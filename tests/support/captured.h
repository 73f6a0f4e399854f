// What a command writes and returns.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace trainer::testing {

struct Captured {
  int code;
  std::string output, errors;
};

template <class Call>
Captured capture(Call&& call) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int code = call();
  std::fflush(stdout);
  return {code, ::testing::internal::GetCapturedStdout(), ::testing::internal::GetCapturedStderr()};
}

}  // namespace trainer::testing

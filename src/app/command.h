// What every subcommand does with errors.
#pragma once

#include <cstdio>
#include <exception>

#include "base/error.h"

namespace trainer {

// Runs `body`, which returns an exit code. An Error is said on standard error and its exit code returned; any
// other exception is 1.
template <class Body>
int run_command(Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    std::fprintf(stderr, "trainer: error: %s\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trainer: %s\n", error.what());
    return 1;
  }
}

}  // namespace trainer

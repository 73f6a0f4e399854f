// What every subcommand that may run under mpirun does with --help and with errors.
#pragma once

#include "app/command.h"
#include "comm/mpi/mpi_communicator.h"

namespace trainer {

// Runs `body(mpi)` on every rank. Returns the exit code: what `body` returns, or 2 where all ranks were given
// wrong input, which rank 0 says. Other failures bring the job down, naming the rank.
template <class Body>
int run_parallel_command(const Command& command, std::span<const std::string> arguments, Body&& body) {
  if (const auto code = answer_usage(command, arguments)) return *code;
  MpiEnvironment mpi;
  try {
    return body(mpi);
  } catch (const Error& error) {
    // Failures that all ranks know of end together.
    if (error.exit_code() == 2) {
      if (mpi.rank() == 0) print_error(command, error.what());
      return 2;
    }
    mpi.abort(error.what(), error.exit_code());
  } catch (const std::exception& error) {
    mpi.abort(error.what(), 1);
  }
}

}  // namespace trainer

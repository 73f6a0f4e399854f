// Checks of a step graph before it runs.
#pragma once

#include <string>
#include <vector>

#include "schedule/step_graph.h"

namespace trainer {

struct Diagnostic {
  std::string message;  // names the tasks
};

// Empty: valid. Every read has a writer; in a graph that holds all ranks, sends match receives in order and
// size, collectives come in the same order on every rank of their communicator; dependencies together with
// lane order have no cycle (found by walking the program through the dispatcher; sends complete only once
// their receive is posted, collectives once all of their ranks have started them). `memory_budget`: bytes per
// rank, 0 = none.
std::vector<Diagnostic> check(const StepGraph& graph, int64_t memory_budget = 0);

// Digest of the order of one rank's transfers and collectives with its peers; neighbours compare it before
// step 0. Sends of one side must have the digest of receives of the other.
uint64_t transfer_digest(const StepGraph& graph, int rank, int peer, bool sends);
uint64_t collective_digest(const StepGraph& graph, int rank, int communicator);

}  // namespace trainer

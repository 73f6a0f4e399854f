// A rank without lanes of its own: memory, binder and inputs over a given graph, to be driven by a test.
#pragma once

#include "support/tiny_grid.h"

namespace trainer::testing {

struct BareRank {
  // `graph` may hold all ranks. Does not wait for other ranks, so one thread may make them all.
  BareRank(const GridPlan& plan, const Config& config, const Model& model, const StepGraph& graph,
           const Problem& problem, Communicator& world, WaitLedger* ledger = nullptr,
           const Clock* clock = nullptr)
      : kernels(make_host_kernels(1)),
        memory(graph, {}, world.rank()),
        communicators(RankCommunicators::make(world, problem)),
        inputs(grid_data(plan), input_shape(config, problem, world.rank())),
        binder({problem, world.rank(), model, *kernels, memory, communicators, inputs,
                make_optimizer_settings(config), plan.dtype, SumAlgorithm::kDirect, ledger, clock}) {
    for (size_t b = 0; b < graph.buffers.size(); ++b)
      if (graph.buffers[b].name == "workspace" && graph.buffers[b].rank == world.rank())
        kernels->grant_workspace(
            {memory.address(graph, static_cast<BufferId>(b)), static_cast<size_t>(graph.buffers[b].bytes)});
    // Not by refresh_working_weights, which waits for the other ranks.
    for (const OwnedBlock& block : binder.blocks(graph)) {
      std::vector<float> values(static_cast<size_t>(model.layer(block.layer).block_size()));
      for (const ParameterSpec& p : model.layer(block.layer).parameters())
        initialize_parameter(p, static_cast<uint64_t>(config.training.seed), 0,
                             {values.data() + p.offset, static_cast<size_t>(p.count())});
      std::copy_n(values.begin() + block.range.begin, block.range.count, block.master);
      if (block.working) kernels->convert(block.working, ref(block.master), block.range.count);
      if (block.whole) kernels->convert(block.whole, ref(values.data()), static_cast<int64_t>(values.size()));
    }
  }

  std::unique_ptr<KernelSet> kernels;
  RankMemory memory;
  RankCommunicators communicators;
  SampledInputs inputs;
  TrainingBinder binder;
};

}  // namespace trainer::testing

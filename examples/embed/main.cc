// Trains a tiny model on a text made here, prints the losses, and looks at a weight.
#include <trainer/dataset.h>
#include <trainer/session.h>

#include <cstdio>
#include <exception>
#include <filesystem>

namespace {

constexpr const char* kConfig = R"({
  "model": {"architecture": "llama", "num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 176,
            "num_attention_heads": 4, "max_position_embeddings": 64},
  "data": {"tokenizer": "byte", "split": "90,10,0", "sequence_length": 64},
  "training": {"steps": 30, "micro_batch_size": 2, "global_batch_size": 4, "eval_interval": 30},
  "precision": {"compute": "fp32"},
  "optimizer": {"lr": 5e-3, "lr_decay_style": "constant"},
  "device": {"threads": 1},
  "run": {"directory": "unused"}
})";

std::vector<std::string> counting_songs() {
  std::vector<std::string> songs;
  for (int bottles = 1; bottles <= 200; ++bottles) {
    const std::string count = std::to_string(bottles);
    songs.push_back(count + " green bottles hanging on the wall, and if one should fall there are " +
                    std::to_string(bottles - 1) + " left of " + count + ".\n");
  }
  return songs;
}

void train(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  trainer::write_byte_dataset((folder / "songs").string(), counting_songs());
  auto session = trainer::Session::open_text(kConfig, {"data.data_path=" + (folder / "songs").string()});
  session.run(session.total_steps(), [](const trainer::StepReport& step) {
    std::printf("step %2d  loss %.4f\n", static_cast<int>(step.step), step.loss);
  });
  std::printf("validation loss %.4f\n", session.evaluate().loss);
  session.save((folder / "checkpoints").string());
  const trainer::ParameterInfo first = session.parameters().front();
  std::printf("%s[0] is %f\n", first.name.c_str(), session.parameter(first.name)->front());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    train(argc > 1 ? argv[1] : "embed-run");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "embed: %s\n", error.what());
    return 1;
  }
}

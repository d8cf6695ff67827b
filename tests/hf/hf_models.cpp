// Reads what transformers wrote, and writes what transformers will read: hf_models MODELS OUT
//
// For each folder MODELS/NAME (make_models.py) the logits are compared with probe.json, and three folders are written:
//   OUT/same/NAME     the weights as they were read, in the type they are stored in
//   OUT/trained/NAME  after two steps on one rank, one file, with logits.json (compare with check_export.py)
//   OUT/shards/NAME   after two steps on tp 2 with sequence parallelism, several files and an index, with logits.json
// Ends with code 77, "skipped" for CTest, where there are no models.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "mesh/fabric.h"
#include "mesh/philox.h"
#include "models/weights.h"
#include "tests/support/synthetic.h"
#include "train/trainer.h"

namespace tetra::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kSkipped = 77;
constexpr int64_t kShardBytes = 20000;

/// What transformers computed: logits [B, S, V] in fp64.
struct Probe {
  at::Tensor ids;  // [B, S]
  at::Tensor logits;
};

template <typename Number>
void append(const json& rows, std::vector<Number>& values) {
  if (!rows.is_array()) {
    values.push_back(rows.get<Number>());
    return;
  }
  for (const json& row : rows) {
    append(row, values);
  }
}

template <typename Number>
at::Tensor nested(const json& rows, at::ScalarType type) {
  std::vector<int64_t> shape;
  for (const json* level = &rows; level->is_array(); level = &level->front()) {
    shape.push_back(static_cast<int64_t>(level->size()));
  }
  std::vector<Number> values;
  append(rows, values);
  return at::tensor(values, type).view(shape);
}

Probe read_probe(const fs::path& folder) {
  std::ifstream file(folder / "probe.json");
  const json probe = json::parse(file);
  return {nested<int64_t>(probe["tokens"], at::kLong), nested<double>(probe["logits"], at::kDouble)};
}

json rows_of(const at::Tensor& x) {
  if (x.dim() == 0) {
    return x.is_floating_point() ? json(x.item<double>()) : json(x.item<int64_t>());
  }
  json rows = json::array();
  for (int64_t i = 0; i < x.size(0); ++i) {
    rows.push_back(rows_of(x[i]));
  }
  return rows;
}

WorldOptions world_of(int64_t tp) {
  WorldOptions options;
  options.degrees.tp = tp;
  return options;
}

/// The precision in which a folder's weights come back as they are stored; fp16 widens to fp32.
const char* stored_precision(const WeightReader& reader) {
  switch (reader.tensors().begin()->second.dtype) {
    case at::kDouble:
      return "fp64";
    case at::kBFloat16:
      return "bf16";
    default:
      return "fp32";
  }
}

void check_logits(const fs::path& folder, const Probe& probe, const char* precision, double tolerance, int64_t tp) {
  run_local_ranks(static_cast<int>(tp), world_of(tp), [&](World& world) {
    const TensorParallel parallel{world.group(Axis::tp), tp > 1};
    const auto model = make_causal_lm(read_model_config(folder), parse_precision(precision), parallel);
    ModelState state(model->parameters(), shard_groups(world, 0), {});
    load_weights(*model, state, WeightReader::open(folder));
    const auto logits = full_logits(*model, make_token_batch(probe.ids)).to(at::kDouble);
    require(logits.sizes() == probe.logits.sizes(), "logits of shape {} against {}", logits.sizes().vec(),
            probe.logits.sizes().vec());
    const double error = ((logits - probe.logits).abs().max() / probe.logits.abs().max()).item<double>();
    require(error <= tolerance, "{} on tp {}: logits differ by {:.2e} of the largest, more than {:.0e}", precision, tp,
            error, tolerance);
    world.print(fmt::format("  {} tp {}: logits within {:.1e}", precision, tp, error));
  });
}

void write_same(const fs::path& folder, const fs::path& out) {
  run_local_ranks(1, world_of(1), [&](World& world) {
    const WeightReader reader = WeightReader::open(folder);
    const auto model = make_causal_lm(read_model_config(folder), parse_precision(stored_precision(reader)),
                                      TensorParallel{world.group(Axis::tp), false});
    ModelState state(model->parameters(), shard_groups(world, 0), {});
    load_weights(*model, state, reader);
    export_model(*model, state, world, out);
  });
}

Config training(const fs::path& folder, const fs::path& out, int64_t tp) {
  Config config;
  config.model.from = folder;
  config.data.tokens = out / "tokens.bin";
  config.data.seq_len = 16;
  config.train.steps = 2;
  config.train.global_batch_size = 4;
  config.train.precision = "fp64";
  config.train.optimizer.lr = 1e-2;
  config.parallelism.degrees.tp = tp;
  config.parallelism.sequence_parallel = tp > 1;
  const auto vocabulary = static_cast<uint64_t>(read_model_config(folder).vocab_size);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < 2 * 4 * 16; ++i) {
    tokens.push_back(static_cast<int32_t>(random_bits({7, "tokens"}, i) % vocabulary));
  }
  write_tokens(config.data.tokens, tokens);
  return config;
}

/// Trains, exports and says what the trained model computes.
void write_trained(const fs::path& folder, const fs::path& out, const Probe& probe, int64_t tp, int64_t shard_bytes) {
  fs::create_directories(out);
  const Config config = training(folder, out, tp);
  run_local_ranks(static_cast<int>(tp), world_of(tp), [&](World& world) {
    Trainer trainer(config, world);
    trainer.step();
    trainer.step();
    export_model(trainer.model(), trainer.state(), world, out, shard_bytes);
    const auto logits = full_logits(trainer.model(), make_token_batch(probe.ids));
    const double change = (logits - probe.logits).abs().max().item<double>();
    require(change > 1e-3, "two steps changed no logit by more than {:.1e}", change);
    if (world.is_main_process()) {
      const json text = {{"dtype", "float64"}, {"tokens", rows_of(probe.ids)}, {"logits", rows_of(logits)}};
      write_text(out / "logits.json", text.dump());
    }
  });
  require(fs::exists(out / kWeightIndexFile) == (tp > 1), "{} should have {} index", out.string(),
          tp > 1 ? "an" : "no");
}

void check_model(const fs::path& folder, const fs::path& out) {
  const std::string name = folder.filename();
  const Probe probe = read_probe(folder);
  for (const int64_t tp : {1, 2}) {
    check_logits(folder, probe, "fp64", 1e-10, tp);
    check_logits(folder, probe, "fp32", 1e-5, tp);
  }
  write_same(folder, out / "same" / name);
  write_trained(folder, out / "trained" / name, probe, 1, int64_t{1} << 30);
  write_trained(folder, out / "shards" / name, probe, 2, kShardBytes);
}

int run(const fs::path& models, const fs::path& out) {
  std::vector<fs::path> folders;
  if (fs::exists(models)) {
    for (const auto& item : fs::directory_iterator(models)) {
      folders.push_back(item.path());
    }
  }
  if (folders.empty()) {
    std::printf("skipped: no models in %s\n", models.c_str());
    return kSkipped;
  }
  std::sort(folders.begin(), folders.end());
  fs::remove_all(out);
  int failed = 0;
  for (const fs::path& folder : folders) {
    std::printf("%s\n", folder.filename().c_str());
    try {
      check_model(folder, out);
    } catch (const std::exception& error) {
      std::printf("  FAILED %s\n", error.what());
      ++failed;
    }
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tetra::testing

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: hf_models MODELS OUT\n");
    return 2;
  }
  return tetra::testing::run(argv[1], argv[2]);
}

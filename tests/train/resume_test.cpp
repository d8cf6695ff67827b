// Saved on one layout, loaded on another: the state is bit-equal, and the run goes on as if it had never stopped.

#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "kernels/error.h"
#include "tests/support/reference.h"
#include "tests/support/synthetic.h"
#include "train/checkpoint/folder.h"
#include "train/checkpoint/hugging_face.h"
#include "train/checkpoint/reader.h"
#include "train/checkpoints.h"
#include "train/run.h"

namespace tetra::testing {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kStop = 5;

void on_ranks(const Config& config, const std::function<void(World&)>& body) {
  WorldOptions options;
  options.degrees = config.parallelism.degrees;
  options.timeout = std::chrono::seconds(60);
  run_local_ranks(static_cast<int>(options.degrees.world_size()), options, body);
}

// Trains to `steps`, from the newest checkpoint of config.checkpoint.dir if there is one, and saves.
Trajectory train_on(Config config, int64_t steps) {
  Trajectory result;
  on_ranks(config, [&](World& world) {
    Trainer trainer(config, world);
    Checkpoints checkpoints(config.checkpoint, world, trainer);
    checkpoints.resume();
    Trajectory mine;
    while (trainer.steps_done() < steps) {
      const StepResult step = trainer.step();
      mine.losses.push_back(step.loss);
      mine.grad_norms.push_back(step.grad_norm);
      mine.tokens.push_back(step.tokens);
      checkpoints.after_step();
    }
    checkpoints.save();
    checkpoints.finish();
    if (world.is_main_process()) {
      result = mine;
    }
  });
  return result;
}

// Loads the newest of `from` and writes it to `to` at once.
void copy_through(Config config, const std::string& from, const std::string& to) {
  on_ranks(config, [&](World& world) {
    Trainer trainer(config, world);
    config.checkpoint.dir = from;
    Checkpoints source(config.checkpoint, world, trainer);
    source.resume();
    CheckpointConfig target = config.checkpoint;
    target.dir = to;
    Checkpoints out(target, world, trainer);
    out.save();
    out.finish();
  });
}

void expect_bit_equal(const std::string& a, const std::string& b) {
  const auto one = CheckpointReader::open(list_checkpoints(a).front());
  const auto two = CheckpointReader::open(list_checkpoints(b).front());
  ASSERT_EQ(one.tensors().size(), two.tensors().size());
  for (const auto& [name, planned] : one.tensors()) {
    EXPECT_TRUE(at::equal(one.read_whole(name), two.read_whole(name))) << name;
  }
  EXPECT_EQ(one.state_json(), two.state_json());
}

const std::vector<Layout> kRing = {
    {},
    {.shard = 2, .tp = 2, .sequence_parallel = true},
    {.dp = 2, .micro_batches = 2},
    {.shard = 4, .zero_stage = 2},
    {.tp = 4, .sequence_parallel = true},
    {.dp = 2, .shard = 2, .tp = 2, .zero_stage = 1},
    {.shard = 8},
    {.tp = 8},
    {.dp = 2, .shard = 2, .zero_stage = 0},
    {.shard = 3, .micro_batches = 2},
    {.dp = 2, .tp = 2},
    {.shard = 2, .zero_stage = 1},
    {.dp = 2, .shard = 3},
};

class Resume : public ::testing::TestWithParam<std::tuple<const char*, size_t>> {};

TEST_P(Resume, GoesOnOnAnotherLayout) {
  const auto& [model, index] = GetParam();
  const Layout& from = kRing[index];
  const Layout& to = kRing[(index + 1) % kRing.size()];
  const TemporaryFolder folder;
  const Reference reference = load_reference(model);
  Config config = reference.config;
  config.checkpoint.dir = folder / "saved";
  train_on(apply(config, from), kStop);

  copy_through(apply(config, to), folder / "saved", folder / "copied");
  expect_bit_equal(folder / "saved", folder / "copied");

  const Trajectory rest = train_on(apply(config, to), config.train.steps);
  ASSERT_EQ(static_cast<int64_t>(rest.losses.size()), config.train.steps - kStop);
  const double tolerance = config.train.precision == "fp64" ? 1e-10 : 2e-5;
  for (size_t i = 0; i < rest.losses.size(); ++i) {
    const double loss = reference.expected.losses[i + kStop];
    const double norm = reference.expected.grad_norms[i + kStop];
    EXPECT_LE(std::abs(rest.losses[i] - loss), tolerance * std::abs(loss)) << from.name() << " to " << to.name();
    EXPECT_LE(std::abs(rest.grad_norms[i] - norm), tolerance * norm) << from.name() << " to " << to.name();
  }
}

std::string pair_name(const ::testing::TestParamInfo<std::tuple<const char*, size_t>>& info) {
  const size_t i = std::get<1>(info.param);
  return fmt::format("{}_{}_to_{}", std::get<0>(info.param), kRing[i].name(), kRing[(i + 1) % kRing.size()].name());
}

// llama_f64 is untied, llama_odd_vocab has a vocabulary that nothing divides, gpt2 is tied.
INSTANTIATE_TEST_SUITE_P(Pairs, Resume,
                         ::testing::Combine(::testing::Values("llama_f64", "llama_odd_vocab", "gpt2"),
                                            ::testing::Range<size_t>(0, kRing.size())),
                         pair_name);

TEST(ResumeOnTheSameLayout, IsEqualToTheLastBit) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    const TemporaryFolder folder;
    Config config = apply(small_config({.batch = 8, .steps = 6, .precision = precision}, folder),
                          {.shard = 2, .tp = 2, .micro_batches = 2});
    config.train.loss_scale.growth_interval = 2;
    const Trajectory whole = train_on(config, 6);
    config.checkpoint.dir = folder / "ckpt";
    config.checkpoint.every = 1;
    train_on(config, 3);
    const Trajectory rest = train_on(config, 6);
    EXPECT_EQ(std::vector<double>(whole.losses.begin() + 3, whole.losses.end()), rest.losses) << precision;
    EXPECT_EQ(std::vector<double>(whole.grad_norms.begin() + 3, whole.grad_norms.end()), rest.grad_norms) << precision;
  }
}

class Checkpointing : public ::testing::Test {
 protected:
  Checkpointing() : config_(apply(small_config({.batch = 4, .steps = 6}, folder_), {.shard = 2})) {
    config_.checkpoint.dir = folder_ / "ckpt";
    config_.checkpoint.every = 1;
    config_.checkpoint.keep = 3;
  }
  std::vector<std::string> saved() const {
    std::vector<std::string> names;
    for (const std::string& path : list_checkpoints(config_.checkpoint.dir)) {
      names.push_back(fs::path(path).filename());
    }
    return names;
  }
  static void damage(const std::string& path) {
    std::string bytes = read_text(path);
    bytes[bytes.size() - 3] = static_cast<char>(bytes[bytes.size() - 3] ^ 1);
    write_text(path, bytes);
  }
  std::string failure(int64_t steps = 6) {
    try {
      train_on(config_, steps);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  TemporaryFolder folder_;
  Config config_;
};

TEST_F(Checkpointing, KeepsTheNewest) {
  train_on(config_, 5);
  EXPECT_EQ(saved(), (std::vector<std::string>{"step-00000005", "step-00000004", "step-00000003"}));
}

TEST_F(Checkpointing, PassesOverABrokenOne) {
  const Trajectory whole = train_on(config_, 4);
  damage(config_.checkpoint.dir + "/step-00000004/rank-00001.safetensors");
  fs::remove(config_.checkpoint.dir + "/step-00000003/plan.json");
  const Trajectory again = train_on(config_, 4);  // from step 2
  EXPECT_EQ(std::vector<double>(whole.losses.begin() + 2, whole.losses.end()), again.losses);
}

TEST_F(Checkpointing, SaysSoWhenNoneCanBeUsed) {
  train_on(config_, 1);
  damage(config_.checkpoint.dir + "/step-00000001/rank-00000.safetensors");
  const std::string message = failure();
  EXPECT_NE(message.find("rank-00000.safetensors"), std::string::npos) << message;
  EXPECT_NE(message.find("can be used"), std::string::npos) << message;
  config_.checkpoint.resume = "none";
  EXPECT_EQ(train_on(config_, 2).losses.size(), 2U);
}

TEST_F(Checkpointing, ResumesFromTheFolderThatIsNamed) {
  train_on(config_, 4);
  config_.checkpoint.resume = config_.checkpoint.dir + "/step-00000003";
  EXPECT_EQ(train_on(config_, 6).losses.size(), 3U);
  config_.checkpoint.resume = config_.checkpoint.dir + "/step-00000099";
  EXPECT_NE(failure().find("step-00000099"), std::string::npos);
}

TEST_F(Checkpointing, RefusesARunThatWouldReadOtherSamplesOrHasAnotherOptimizer) {
  train_on(config_, 2);
  const Config same = config_;
  config_.seed = 43;
  EXPECT_NE(failure().find("seed is 42 there and 43 in this run"), std::string::npos) << failure();
  config_ = same;
  config_.train.optimizer.type = "sgd";
  EXPECT_NE(failure().find("train.optimizer.type"), std::string::npos) << failure();
  config_ = same;
  config_.model.config_json.replace(config_.model.config_json.find("32"), 2, "64");
  EXPECT_NE(failure(), "");
}

TEST_F(Checkpointing, KeepsWhatAProgramRegisters) {
  std::string loaded;
  const auto run = [&](int64_t steps, const std::string& bytes) {
    on_ranks(config_, [&](World& world) {
      Trainer trainer(config_, world);
      Checkpoints checkpoints(config_.checkpoint, world, trainer);
      const auto load = [&loaded, main = world.is_main_process()](const std::string& text) {
        if (main) {
          loaded = text;
        }
      };
      checkpoints.register_for_checkpointing("counter", {[&] { return bytes; }, load});
      EXPECT_THROW(checkpoints.register_for_checkpointing("counter", {}), Error);
      EXPECT_THROW(checkpoints.register_for_checkpointing("../x", {}), Error);
      checkpoints.resume();
      while (trainer.steps_done() < steps) {
        trainer.step();
      }
      checkpoints.save();
      checkpoints.finish();
    });
  };
  const std::string bytes("a\0b\n", 4);
  run(1, bytes);
  run(2, "later");
  EXPECT_EQ(loaded, bytes);
}

// tetra convert makes it of a Hugging Face folder: a start, not a place to go on from.
TEST(WeightsAlone, AreAStart) {
  const TemporaryFolder folder;
  const Reference reference = load_reference("llama_f64");
  Config config = reference.config;
  import_hugging_face(reference.folder, folder / "imported");
  config.model.from.clear();
  config.model.config_json = read_text(reference.folder + "/config.json");
  config.checkpoint.dir = folder / "imported";
  const Trajectory all = train_on(apply(config, {.shard = 2, .tp = 2}), 3);
  ASSERT_EQ(all.losses.size(), 3U);
  for (size_t i = 0; i < all.losses.size(); ++i) {
    EXPECT_NEAR(all.losses[i], reference.expected.losses[i], 1e-10 * reference.expected.losses[i]);
    EXPECT_NEAR(all.grad_norms[i], reference.expected.grad_norms[i], 1e-10 * reference.expected.grad_norms[i]);
  }
}

TEST_F(Checkpointing, MetricsGoOnWhereTheyWere) {
  config_.log.metrics = folder_ / "metrics.jsonl";
  config_.train.steps = 4;
  on_ranks(config_, [&](World& world) { run_training(config_, world); });
  const std::string whole = read_text(config_.log.metrics);
  write_text(config_.log.metrics, whole + "{\"step\": 5, \"torn");
  fs::remove_all(config_.checkpoint.dir + "/step-00000004");
  on_ranks(config_, [&](World& world) { run_training(config_, world); });
  const std::string again = read_text(config_.log.metrics);
  std::istringstream lines(again);
  int64_t step = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(line.starts_with(fmt::format("{{\"step\":{},", ++step))) << line;
  }
  EXPECT_EQ(step, 4);
}

}  // namespace
}  // namespace tetra::testing

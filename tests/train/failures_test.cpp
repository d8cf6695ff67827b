// Bad input and bad numbers: one clear error, the same on all ranks, nothing half written, weights as they were.

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "kernels/error.h"
#include "tests/support/reference.h"
#include "tests/support/synthetic.h"
#include "train/run.h"

namespace tetra::testing {
namespace {

namespace fs = std::filesystem;

// The message with which a run on `layout` ends, "" when it does not fail.
std::string failure_of(const Config& config, const Layout& layout = {.dp = 2, .tp = 2}) {
  try {
    const Config cut = apply(config, layout);
    WorldOptions options;
    options.degrees = cut.parallelism.degrees;
    run_local_ranks(static_cast<int>(layout.world_size()), options, [&](World& world) { run_training(cut, world); });
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void expect_failure(const Config& config, const std::vector<std::string>& words,
                    const Layout& layout = {.dp = 2, .tp = 2}) {
  const std::string message = failure_of(config, layout);
  for (const std::string& word : words) {
    EXPECT_NE(message.find(word), std::string::npos) << "'" << word << "' is not in: " << message;
  }
}

class Failures : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
  Config config_ = small_config({}, folder_);
};

TEST_F(Failures, TokenIdsOutsideTheVocabulary) {
  std::vector<int32_t> tokens(3 * 4 * 12, 5);
  tokens[1 * 48 + 3 * 12 + 7] = 96;
  write_tokens(config_.data.tokens, tokens);
  expect_failure(config_, {"tokens.bin", "token id 96", "step 2", "sequence 3", "position 7", "vocabulary of 96"});
  tokens[1 * 48 + 3 * 12 + 7] = -100;
  write_tokens(config_.data.tokens, tokens);
  expect_failure(config_, {"token id -100"});
}

TEST_F(Failures, LabelsOutsideTheVocabulary) {
  std::vector<int32_t> labels(3 * 4 * 12, -100);
  labels[5] = -1;
  write_tokens(config_.data.labels, labels);
  expect_failure(config_, {"labels.bin", "token id -1", "step 1", "position 5"});
}

TEST_F(Failures, TokensFileTooShortOrMissing) {
  write_tokens(config_.data.tokens, std::vector<int32_t>(3 * 4 * 12 - 1, 5));
  expect_failure(config_, {"tokens.bin", "572 bytes", "need 576", "at most 2 steps"});
  fs::remove(config_.data.tokens);
  expect_failure(config_, {"data.tokens", "cannot open", "No such file"});
  config_.data.tokens = folder_.path();
  expect_failure(config_, {"data.tokens", "is not a file"});
}

TEST_F(Failures, ABatchThatTheRanksCannotShare) {
  expect_failure(config_, {"global_batch_size 4", "5 data-parallel ranks"}, {.dp = 5});
}

TEST_F(Failures, DegreesThatDoNotFitTheModel) {
  expect_failure(config_, {"tp_size 3", "num_attention_heads 4", "1, 2 or 4"}, {.tp = 3});
}

TEST_F(Failures, WeightsThatLieOrAreCutShort) {
  config_.export_dir = folder_ / "model";
  ASSERT_EQ(failure_of(config_), "");
  config_.model.config_json.clear();
  config_.model.from = config_.export_dir;
  config_.export_dir = "";
  ASSERT_EQ(failure_of(config_), "");

  const std::string weights = folder_ / "model/model.safetensors";
  const std::string good = read_text(weights);
  write_text(weights, good.substr(0, good.size() - 8));
  expect_failure(config_, {"model.safetensors"});
  write_text(weights, good);

  const std::string json = read_text(folder_ / "model/config.json");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = json;
    changed.replace(changed.find(from), from.size(), to);
    write_text(folder_ / "model/config.json", changed);
  };
  with("\"intermediate_size\": 48", "\"intermediate_size\": 40");
  expect_failure(config_, {"model.safetensors", "mlp.gate_proj.weight", "48", "40"});
  with("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1");
  expect_failure(config_, {"model.layers.1.", "has no place"});
  with("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
  expect_failure(config_, {"model.layers.2."});
  with("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
  EXPECT_EQ(failure_of(config_), "");  // a tied model's file may hold both
}

TEST_F(Failures, AnExportThatCannotBeWrittenIsFoundBeforeTraining) {
  write_text(folder_ / "taken", "");
  config_.export_dir = folder_ / "taken";
  config_.log.metrics = folder_ / "metrics.jsonl";
  expect_failure(config_, {"export", "taken", "not a folder"});
  EXPECT_FALSE(fs::exists(config_.log.metrics));
}

// Found at that step, on all ranks, before the update.
TEST_F(Failures, ALossThatIsNotFinite) {
  for (const double poison : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const Config cut = apply(config_, {.dp = 2, .tp = 2, .sequence_parallel = true});
    WorldOptions options;
    options.degrees = cut.parallelism.degrees;
    run_local_ranks(4, options, [&](World& world) {
      Trainer trainer(cut, world);
      trainer.step();
      // One rank's copy is damaged; every rank must notice.
      Parameter& gate = *trainer.model().parameters().find("model.layers.0.mlp.gate_proj.weight");
      Parameter& head = *trainer.model().parameters().find("lm_head.weight");
      if (world.rank() == 3) {
        gate.value.detach().flatten()[0] = poison;
      }
      const auto before = head.value.detach().clone();
      std::string message;
      try {
        trainer.step();
      } catch (const Error& error) {
        message = error.what();
      }
      EXPECT_NE(message.find("step 2: the "), std::string::npos) << message;
      EXPECT_NE(message.find("after step 1"), std::string::npos) << message;
      EXPECT_TRUE(at::equal(head.value, before));
    });
  }
}

// Weight decay is all that is left, also with moments from earlier steps.
TEST_F(Failures, AStepWithoutACountedTokenDecaysAlone) {
  std::vector<int32_t> labels(3 * 4 * 12, -100);
  for (int i = 0; i < 48; ++i) {
    labels[i] = i;
  }
  write_tokens(config_.data.labels, labels);
  for (const char* type : {"adamw", "sgd"}) {
    config_.train.optimizer.type = type;
    config_.train.optimizer.momentum = 0.9;
    const Config cut = apply(config_, {.dp = 2, .tp = 2});
    WorldOptions options;
    options.degrees = cut.parallelism.degrees;
    run_local_ranks(4, options, [&](World& world) {
      Trainer trainer(cut, world);
      trainer.step();
      std::vector<at::Tensor> before;
      for (const Parameter& parameter : trainer.model().parameters().all()) {
        before.push_back(parameter.value.detach().clone());
      }
      const StepResult result = trainer.step();
      EXPECT_EQ(result.tokens, 0);
      EXPECT_EQ(result.loss, 0);
      EXPECT_EQ(result.grad_norm, 0);
      size_t i = 0;
      for (const Parameter& parameter : trainer.model().parameters().all()) {
        const double kept = parameter.value.dim() >= 2 ? 1 - cut.train.optimizer.lr * 0.1 : 1.0;
        EXPECT_TRUE(at::equal(parameter.value, before[i] * kept)) << parameter.name;
        ++i;
      }
    });
  }
}

TEST_F(Failures, ARankThatThrowsEndsTheRunWithItsMessage) {
  const Config cut = apply(config_, {.dp = 2, .tp = 2});
  WorldOptions options;
  options.degrees = cut.parallelism.degrees;
  try {
    run_local_ranks(4, options, [&](World& world) {
      Trainer trainer(cut, world);
      trainer.step();
      if (world.rank() == 2) {
        throw std::runtime_error("disk on fire");
      }
      trainer.step();
    });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "rank 2: disk on fire");
  }
}

}  // namespace
}  // namespace tetra::testing

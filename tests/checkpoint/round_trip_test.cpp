// What is saved on one division comes back on any other, bit for bit.
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "kernels/error.h"
#include "models/safetensors.h"
#include "tests/checkpoint/parts.h"
#include "tests/support/synthetic.h"
#include "train/checkpoint/folder.h"
#include "train/checkpoint/reader.h"
#include "train/checkpoint/saver.h"

namespace tetra {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::read_text;
using testing::TemporaryFolder;
using testing::Tensors;

using Change = std::function<void(SaverOptions&, CheckpointContent&)>;

/// Saves the states on as many ranks, threads of this process.
void save_ranks(
    const std::string& dir, int64_t step, const std::vector<std::vector<StatePart>>& states,
    const Change& change = [](SaverOptions&, CheckpointContent&) {}) {
  const std::string id = make_save_id();
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < states.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      SaverOptions options = {
          .dir = dir, .rank = static_cast<int>(rank), .world_size = static_cast<int>(states.size())};
      CheckpointContent content = {.parts = states[rank], .state_json = R"({"z": 1, "a": {"step": 3}})"};
      change(options, content);
      CheckpointSaver saver(options);
      saver.save(step, id, std::move(content));
      saver.wait();
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
}

TEST(RoundTrip, AnyDivisionToAnyOther) {
  testing::Random random(11);
  for (int round = 0; round < 12; ++round) {
    const TemporaryFolder dir;
    const Tensors tensors = testing::random_tensors(random);
    save_ranks(dir.path(), round, testing::random_division(tensors, 1 + round % 4, false, random));
    const auto reader = CheckpointReader::open(list_checkpoints(dir.path()).at(0));
    EXPECT_EQ(reader.verify(0, 1), std::nullopt);
    EXPECT_EQ(reader.step(), round);
    EXPECT_EQ(reader.world_size(), 1 + round % 4);
    EXPECT_EQ(reader.tensors().size(), tensors.size());
    for (const auto& state : testing::random_division(tensors, 1 + random() % 5, true, random)) {
      reader.read(state);
      EXPECT_TRUE(testing::parts_equal(state, tensors)) << "round " << round;
    }
    for (const auto& [name, tensor] : tensors) {
      EXPECT_TRUE(testing::parts_equal(
          {{name, tensor.sizes().vec(), std::vector<int64_t>(tensor.dim()), reader.read_whole(name)}}, tensors));
    }
  }
}

// Long enough for several pieces, staged reads of narrow columns, and sparse ones that are read run by run.
TEST(RoundTrip, LargeBoxes) {
  const TemporaryFolder dir;
  const Tensors tensors = {{"a", testing::patterned({3000, 4099}, at::kFloat, 1)},
                           {"b", testing::patterned({70, 200000}, at::kBFloat16, 2)}};
  save_ranks(dir.path(), 1, {testing::whole_parts(tensors), {}});
  const auto reader = CheckpointReader::open(dir / "step-00000001");
  EXPECT_FALSE(fs::exists(dir / "step-00000001/rank-00001.safetensors"));
  const std::vector<Box> boxes = {{{0, 0}, {3000, 4099}}, {{0, 7}, {3000, 1000}}, {{5, 4000}, {2990, 3}}};
  for (const Box& box : boxes) {
    const std::vector<StatePart> part = {{"a", {3000, 4099}, box.offsets, at::empty(box.sizes)}};
    reader.read(part);
    EXPECT_TRUE(testing::parts_equal(part, tensors)) << box.text();
  }
  for (const Box& box : std::vector<Box>{{{0, 0}, {70, 200000}}, {{0, 100000}, {70, 64}}, {{1, 50000}, {69, 90000}}}) {
    const std::vector<StatePart> part = {{"b", {70, 200000}, box.offsets, at::empty(box.sizes, at::kBFloat16)}};
    reader.read(part);
    EXPECT_TRUE(testing::parts_equal(part, tensors)) << box.text();
  }
}

TEST(RoundTrip, FilesAreSafetensorsThatOthersRead) {
  const TemporaryFolder dir;
  const Tensors tensors = {{"weights/x", testing::patterned({4, 6}, at::kBFloat16, 1)},
                           {"step", testing::patterned({}, at::kLong, 2)}};
  save_ranks(dir.path(), 5, {testing::whole_parts(tensors)});
  const auto reader = WeightReader::open(dir / "step-00000005/rank-00000.safetensors");
  EXPECT_TRUE(reader.contains("step[]"));
  const at::Tensor x = reader.read("weights/x[0:4,0:6]", Slice::whole({4, 6}), at::kBFloat16);
  EXPECT_TRUE(x.view(at::kShort).equal(tensors.at("weights/x").view(at::kShort)));
}

TEST(RoundTrip, StateAndObjects) {
  const TemporaryFolder dir;
  save_ranks(dir.path(), 5, {{}, {}}, [](const SaverOptions& options, CheckpointContent& content) {
    content.objects = {
        {"mine." + std::to_string(options.rank), std::string("a\0b", 3)},
    };
    if (options.rank == 0) {
      content.objects["empty"] = "";
    }
  });
  const auto reader = CheckpointReader::open(dir / "step-00000005");
  EXPECT_EQ(reader.verify(0, 1), std::nullopt);
  EXPECT_EQ(reader.state_json(), R"({"z":1,"a":{"step":3}})");  // keys stay in their order
  EXPECT_EQ(reader.object("mine.0"), std::string("a\0b", 3));
  EXPECT_EQ(reader.object("mine.1"), std::string("a\0b", 3));
  EXPECT_EQ(reader.object("empty"), "");
  EXPECT_TRUE(reader.has_object("empty"));
  EXPECT_FALSE(reader.has_object("rank-00000.safetensors"));
  EXPECT_THROW(reader.object("other"), Error);
}

std::map<std::string, std::string> files_below(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& item : fs::recursive_directory_iterator(folder)) {
    if (item.is_regular_file()) {
      files[fs::relative(item.path(), folder)] = read_text(item.path());
    }
  }
  return files;
}

TEST(RoundTrip, BackgroundForegroundAndDeferredWriteTheSameBytes) {
  testing::Random random(3);
  const Tensors tensors = testing::random_tensors(random);
  const auto states = testing::random_division(tensors, 3, false, random);
  const TemporaryFolder background;
  const TemporaryFolder foreground;
  const TemporaryFolder deferred;
  const auto with_object = [](SaverOptions& options, CheckpointContent& content) {
    content.objects = {{std::to_string(options.rank), "bytes"}};
  };
  save_ranks(background.path(), 7, states, with_object);
  save_ranks(foreground.path(), 7, states, [&](SaverOptions& options, CheckpointContent& content) {
    with_object(options, content);
    options.background = false;
  });
  save_ranks(deferred.path(), 7, states, [&](SaverOptions& options, CheckpointContent& content) {
    with_object(options, content);
    options.deferred_copy = true;
  });
  const auto expected = files_below(background.path());
  EXPECT_EQ(expected.size(), 3u + 3u + 1u);  // nothing but files of ranks, objects and the plan stays
  EXPECT_EQ(files_below(foreground.path()), expected);
  EXPECT_EQ(files_below(deferred.path()), expected);
}

TEST(RoundTrip, WhatChangesAfterSaveIsNotSaved) {
  for (const bool deferred : {false, true}) {
    const TemporaryFolder dir;
    const at::Tensor live = at::ones({1000, 1000});
    CheckpointSaver saver({.dir = dir.path(), .deferred_copy = deferred});
    saver.prepare({{"x", {1000, 1000}, {0, 0}, live}});
    for (int64_t step = 1; step <= 3; ++step) {
      live.fill_(static_cast<double>(step));
      saver.save(step, make_save_id(), {.parts = {{"x", {1000, 1000}, {0, 0}, live}}});
      saver.wait_copied();
      live.fill_(-1.0);
    }
    saver.wait();
    EXPECT_EQ(list_checkpoints(dir.path()).size(), 2u);
    const at::Tensor x = CheckpointReader::open(dir / "step-00000003").read_whole("x");
    EXPECT_TRUE(x.equal(at::full({1000, 1000}, 3.0))) << deferred;
  }
}

TEST(RoundTrip, ConvertsWhenAskedTo) {
  const TemporaryFolder dir;
  const at::Tensor stored = at::full({4, 3}, 1.00390625);  // a tie between two bf16 values
  const at::Tensor count = at::ones({2}, at::kLong);
  save_ranks(dir.path(), 1, {testing::whole_parts({{"x", stored}, {"n", count}})});
  const auto reader = CheckpointReader::open(dir / "step-00000001");
  const at::Tensor wanted = at::zeros({4, 2}, at::kBFloat16);
  EXPECT_THROW(reader.read({{"x", {4, 3}, {0, 1}, wanted}}), Error);
  reader.read_converted({{"x", {4, 3}, {0, 1}, wanted}});
  EXPECT_TRUE(wanted.equal(stored.narrow(1, 1, 2).to(at::kBFloat16)));
  EXPECT_THROW(reader.read_converted({{"n", {2}, {0}, at::zeros({2})}}), Error);
}

TEST(RoundTrip, WhatDoesNotFitIsNamed) {
  const TemporaryFolder dir;
  save_ranks(dir.path(), 1, {testing::whole_parts({{"x", at::ones({4, 3})}})});
  const auto reader = CheckpointReader::open(dir / "step-00000001");
  const std::string plan = dir / "step-00000001/plan.json";
  const auto refusal = [&](const StatePart& part) { return error_of([&] { reader.read({part}); }); };
  EXPECT_EQ(refusal({"y", {4, 3}, {0, 0}, at::zeros({4, 3})}),
            "tensor 'y' is missing in " + plan + ", which has 1 others");
  EXPECT_EQ(refusal({"x", {4, 4}, {0, 0}, at::zeros({4, 3})}),
            "tensor 'x' has shape [4, 3] in " + plan + ", but [4, 4] is wanted");
  EXPECT_EQ(refusal({"x", {4, 3}, {0, 0}, at::zeros({4, 3}, at::kDouble)}),
            "tensor 'x' is Float in " + plan + ", but Double is wanted");
  EXPECT_EQ(refusal({"x", {4, 3}, {0, 1}, at::zeros({4, 3})}),
            "tensor 'x': sizes [4, 3] at [0, 1] are not a box of shape [4, 3] (" + plan + ")");
}

}  // namespace
}  // namespace tetra

// Every reference model on every layout of the table gives the trajectory that one PyTorch process gave.

#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/reference.h"

namespace tetra::testing {
namespace {

const std::vector<const char*> kModels = {"llama",      "llama_f64",    "llama_odd_vocab",
                                          "llama_deep", "llama_masked", "gpt2"};

const std::vector<Layout> kLayouts = {
    {.dp = 1, .tp = 1},
    {.dp = 2, .tp = 1},
    {.dp = 4, .tp = 1},
    {.dp = 1, .tp = 2},
    {.dp = 1, .tp = 2, .sequence_parallel = true},
    {.dp = 1, .tp = 4},
    {.dp = 1, .tp = 4, .sequence_parallel = true},
    {.dp = 1, .tp = 8},
    {.dp = 1, .tp = 8, .sequence_parallel = true},
    {.dp = 2, .tp = 2},
    {.dp = 2, .tp = 2, .sequence_parallel = true},
    {.dp = 2, .tp = 4},
    {.dp = 2, .tp = 4, .sequence_parallel = true},
    {.dp = 3, .tp = 1},
    {.dp = 3, .tp = 2, .sequence_parallel = true},
    {.shard = 2, .zero_stage = 1},
    {.shard = 2, .zero_stage = 2},
    {.shard = 2},
    {.shard = 3},
    {.shard = 4},
    {.shard = 8, .zero_stage = 1},
    {.shard = 8},
    {.dp = 2, .shard = 2, .zero_stage = 0},
    {.dp = 2, .shard = 2, .zero_stage = 1},
    {.dp = 2, .shard = 2, .zero_stage = 2},
    {.dp = 2, .shard = 2},
    {.shard = 2, .tp = 2, .zero_stage = 1},
    {.shard = 2, .tp = 2, .sequence_parallel = true, .zero_stage = 2},
    {.shard = 2, .tp = 2, .sequence_parallel = true},
    {.dp = 2, .shard = 2, .tp = 2, .zero_stage = 1},
    {.dp = 2, .shard = 2, .tp = 2, .zero_stage = 2},
    {.dp = 2, .shard = 2, .tp = 2, .sequence_parallel = true},
};

class Layouts : public ::testing::TestWithParam<std::tuple<const char*, Layout>> {};

TEST_P(Layouts, GiveTheReferenceTrajectory) {
  const Reference reference = load_reference(std::get<0>(GetParam()));
  const bool exact = reference.config.train.precision == "fp64";
  for (const int64_t micro_batches : {1, 2, 4}) {
    Layout layout = std::get<1>(GetParam());
    if (layout.shard > 1 && micro_batches == 2) {
      continue;
    }
    layout.micro_batches = micro_batches;
    const Errors errors = compare(train_local(apply(reference.config, layout)), reference.expected);
    EXPECT_TRUE(exact ? errors.within(1e-10, 1e-10) : errors.within(2e-5, 1e-4))
        << reference.folder << " on " << layout.name() << ": " << errors;
  }
}

INSTANTIATE_TEST_SUITE_P(Table, Layouts,
                         ::testing::Combine(::testing::ValuesIn(kModels), ::testing::ValuesIn(kLayouts)),
                         [](const auto& info) {
                           const Layout& layout = std::get<1>(info.param);
                           std::string name = std::string(std::get<0>(info.param)) + "_" + layout.name();
                           return name.substr(0, name.rfind("_x"));
                         });

}  // namespace
}  // namespace tetra::testing

#include "launch/settle_ranks.h"

#include <gtest/gtest.h>

#include "kernels/error.h"
#include "launch/supported.h"

namespace tetra {
namespace {

const std::string kBase = "model: {from: folder}\ndata: {text: a.txt}\n";

LoadedConfig load(std::vector<std::string> sets) {
  return load_config_text(kBase, {"c.yaml", {}, std::move(sets)});
}

Place launched(const std::string& source, int world_size) {
  Place place;
  place.source = source;
  place.world_size = world_size;
  return place;
}

std::string error_of(std::vector<std::string> sets, std::optional<int64_t> ranks, const Place& place = {}) {
  LoadedConfig loaded = load(std::move(sets));
  try {
    settle_ranks(loaded, ranks, place);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Ranks, AreTheProductOfTheDegreesByDefault) {
  LoadedConfig one = load({});
  EXPECT_EQ(settle_ranks(one, std::nullopt, {}), 1);
  LoadedConfig six = load({"parallelism.tp_size=2", "parallelism.dp_replicate_size=3"});
  EXPECT_EQ(settle_ranks(six, std::nullopt, {}), 6);
  EXPECT_EQ(settle_ranks(six, 6, {}), 6);
}

TEST(Ranks, DataParallelismTakesWhatNobodyGave) {
  LoadedConfig loaded = load({"parallelism.tp_size=2"});
  EXPECT_EQ(settle_ranks(loaded, 8, {}), 8);
  EXPECT_EQ(loaded.config.parallelism.degrees.dp_replicate, 4);
  LoadedConfig by_mpi = load({"parallelism.tp_size=2"});
  EXPECT_EQ(settle_ranks(by_mpi, std::nullopt, launched("mpi", 4)), 4);
  EXPECT_EQ(by_mpi.config.parallelism.degrees.dp_replicate, 2);
}

TEST(Ranks, DisagreeingNumbersAreRefusedWithBoth) {
  EXPECT_EQ(error_of({"parallelism.tp_size=2", "parallelism.dp_replicate_size=1"}, 4),
            "-n 4, but the configuration makes 2 (dp_replicate_size 1 x tp_size 2); use 2 ranks, or change a degree");
  EXPECT_EQ(error_of({"parallelism.tp_size=2"}, 3),
            "-n 3, but the configuration makes 2 (tp_size 2); use 2 ranks or a multiple of it, or change a degree");
  EXPECT_EQ(error_of({"parallelism.dp_replicate_size=1"}, std::nullopt, launched("slurm", 2))
                .rfind("srun started 2 ranks, but the configuration makes 1 (dp_replicate_size 1)", 0),
            0u);
  EXPECT_EQ(error_of({}, 2, launched("mpi", 2)),
            "-n 2: mpirun already started this process as rank 0 of 2; leave out -n");
  EXPECT_EQ(error_of({"parallelism.ep_size=2"}, 1).rfind("ep_size 2 does not divide", 0), 0u);
  EXPECT_EQ(error_of({"parallelism.tp_size=2048"}, std::nullopt).rfind("2048 thread ranks are too many", 0), 0u);
}

TEST(Ranks, BackendMustSuitTheLauncher) {
  EXPECT_NE(error_of({"parallelism.backend=mpi"}, 2).find("no launcher started this one"), std::string::npos);
  EXPECT_NE(error_of({"parallelism.backend=local"}, std::nullopt, launched("mpi", 2)).find("mpirun started 2"),
            std::string::npos);
  EXPECT_NE(error_of({"parallelism.backend=mpi"}, std::nullopt, launched("torchrun", 2)).find("not by MPI"),
            std::string::npos);
  EXPECT_EQ(error_of({"parallelism.backend=mpi"}, std::nullopt, launched("mpi", 2)), "no error");
  EXPECT_EQ(error_of({"parallelism.backend=local"}, 2), "no error");
  EXPECT_EQ(error_of({"parallelism.backend=mpi"}, 1), "no error");
}

TEST(Supported, WhatIsNotThereYetIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"parallelism.pp_size=2", "parallelism.pp_size 2: pipeline parallelism is not there yet; use 1"},
      {"parallelism.cp_size=2", "parallelism.cp_size 2: "},
      {"parallelism.sp_size=2", "parallelism.sp_size 2: "},
      {"parallelism.ep_size=2", "parallelism.ep_size 2: "},
      {"parallelism.virtual_stages=2", "parallelism.virtual_stages 2: "},
      {"parallelism.backend=nccl", "parallelism.backend nccl: "},
  };
  for (const auto& [set, message] : cases) {
    const LoadedConfig loaded = load({set});
    try {
      check_supported(loaded.config);
      ADD_FAILURE() << set << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).rfind(message, 0), 0u) << error.what();
    }
    try {
      check_supported(loaded);
      ADD_FAILURE() << set << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).rfind(std::string("--set ") + set + ": " + message, 0), 0u) << error.what();
    }
  }
  EXPECT_THROW(check_supported(load({"data.text=null", "data.tokens=t", "data.mask=m"})), Error);
}

TEST(Supported, WhatIsThereIsTaken) {
  EXPECT_NO_THROW(check_supported(load({})));
  EXPECT_NO_THROW(check_supported(
      load({"parallelism={tp_size: 2, dp_replicate_size: 2, sequence_parallel: true}", "parallelism.zero_stage=1",
            "train.precision=bf16", "device=cpu", "data.text=null", "data.tokens=t", "data.labels=l"})));
}

}  // namespace
}  // namespace tetra

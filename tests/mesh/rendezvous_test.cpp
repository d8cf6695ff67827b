#include "mesh/rendezvous.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "kernels/error.h"
#include "mesh/fabric.h"

namespace tetra {
namespace {

using Variables = std::map<std::string, std::string>;

Place read(const Variables& variables) {
  return read_place([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

Variables joined(Variables a, const Variables& b) {
  for (const auto& [name, value] : b) {
    a[name] = value;
  }
  return a;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

void expect_place(const Place& place, const std::string& source, int rank, int size, int local_rank, int local_size) {
  EXPECT_EQ(place.source, source);
  EXPECT_EQ(place.rank, rank);
  EXPECT_EQ(place.world_size, size);
  EXPECT_EQ(place.local_rank, local_rank);
  EXPECT_EQ(place.local_size, local_size);
}

/// Reading fails with a message that has all of `parts`.
void expect_error(const Variables& variables, const std::vector<std::string>& parts) {
  try {
    read(variables);
    ADD_FAILURE() << "no error; expected one with " << parts.front();
  } catch (const Error& error) {
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << part << " is not in: " << error.what();
    }
  }
}

const Variables kMpi = {{"OMPI_COMM_WORLD_RANK", "5"},
                        {"OMPI_COMM_WORLD_SIZE", "8"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
const Variables kSlurm = {{"SLURM_JOB_ID", "77"},        {"SLURM_STEP_ID", "0"},
                          {"SLURM_PROCID", "5"},         {"SLURM_NTASKS", "7"},
                          {"SLURM_STEP_NUM_TASKS", "7"}, {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "2"},         {"SLURM_STEP_TASKS_PER_NODE", "2(x2),3"}};
const Variables kTorchrun = {{"RANK", "3"},           {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "3"},     {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "node"}, {"MASTER_PORT", "29500"}};

TEST(Rendezvous, NothingSetIsOneProcess) {
  expect_place(read({}), "none", 0, 1, 0, 1);
}

TEST(Rendezvous, OpenMpi) {
  expect_place(read(kMpi), "mpi", 5, 8, 1, 4);
}

TEST(Rendezvous, OpenMpiWithOneProcess) {
  const Variables one = {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}};
  expect_place(read(one), "mpi", 0, 1, 0, 1);
  EXPECT_EQ(make_fabric(read(one), "cpu"), nullptr);
}

TEST(Rendezvous, Pmi) {
  const Variables pmi = {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}};
  expect_place(read(pmi), "mpi", 2, 4, 0, 2);
  expect_place(read({{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}}), "mpi", 2, 4, 2, 4);
}

TEST(Rendezvous, OpenMpiComesBeforePmi) {
  expect_place(read(joined(kMpi, {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}})), "mpi", 5, 8, 1, 4);
}

TEST(Rendezvous, HalfSetOpenMpiNamesBoth) {
  expect_error(without(kMpi, "OMPI_COMM_WORLD_SIZE"), {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"});
  expect_error(without(kMpi, "OMPI_COMM_WORLD_RANK"), {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"});
  expect_error({{"PMI_RANK", "0"}}, {"PMI_RANK", "PMI_SIZE"});
}

TEST(Rendezvous, RankMustBeBelowTheNumberOfRanks) {
  expect_error(joined(kMpi, {{"OMPI_COMM_WORLD_RANK", "8"}}), {"OMPI_COMM_WORLD_RANK=8", "OMPI_COMM_WORLD_SIZE=8"});
  expect_error(joined(kTorchrun, {{"RANK", "9"}}), {"RANK=9", "WORLD_SIZE=8"});
  expect_error(joined(kTorchrun, {{"WORLD_SIZE", "0"}}), {"WORLD_SIZE=0"});
  expect_error({{"RANK", "1"}, {"WORLD_SIZE", "1"}}, {"RANK=1", "WORLD_SIZE=1"});
  expect_error(joined(kSlurm, {{"SLURM_PROCID", "7"}}), {"SLURM_PROCID=7", "SLURM_STEP_NUM_TASKS=7"});
}

TEST(Rendezvous, LocalRankMustBeBelowTheRanksOfTheMachine) {
  expect_error(joined(kMpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", "4"}}), {"OMPI_COMM_WORLD_LOCAL_RANK=4"});
  expect_error(joined(kTorchrun, {{"LOCAL_WORLD_SIZE", "3"}}), {"LOCAL_RANK=3", "LOCAL_WORLD_SIZE=3"});
  expect_error(joined(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}}), {"LOCAL_WORLD_SIZE=9", "WORLD_SIZE=8"});
}

TEST(Rendezvous, ValuesThatAreNoNumbers) {
  for (const char* value : {"x", "3x", "-1", "1.5", " 3", "0x3", "99999999999999999999"}) {
    expect_error(joined(kTorchrun, {{"RANK", value}}), {std::string("RANK='") + value + "'"});
    expect_error(joined(kMpi, {{"OMPI_COMM_WORLD_SIZE", value}}), {"OMPI_COMM_WORLD_SIZE", value});
  }
  expect_error(joined(kSlurm, {{"SLURM_STEP_ID", "batch"}}), {"SLURM_STEP_ID='batch'"});
}

TEST(Rendezvous, EmptyValuesCountAsNotSet) {
  expect_place(read({{"RANK", ""}, {"WORLD_SIZE", ""}, {"OMPI_COMM_WORLD_RANK", ""}}), "none", 0, 1, 0, 1);
  expect_error(joined(kTorchrun, {{"WORLD_SIZE", ""}}), {"RANK", "WORLD_SIZE"});
}

TEST(Rendezvous, Slurm) {
  expect_place(read(kSlurm), "slurm", 5, 7, 1, 3);
}

TEST(Rendezvous, SlurmTasksOfEachNode) {
  for (const auto& [node, tasks] : {std::pair{"0", 2}, {"1", 2}, {"2", 3}}) {
    EXPECT_EQ(read(joined(kSlurm, {{"SLURM_NODEID", node}})).local_size, tasks) << node;
  }
  EXPECT_EQ(read(joined(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "4,1,2"}})).local_size, 2);
  expect_error(joined(kSlurm, {{"SLURM_NODEID", "3"}}), {"2(x2),3", "SLURM_NODEID"});
  for (const char* list : {"2(x", "2(x2", "2(x2)3", "a", "2,,3", "2(y2)"}) {
    expect_error(joined(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", list}}), {"SLURM_STEP_TASKS_PER_NODE", list});
  }
}

TEST(Rendezvous, SlurmHalfSet) {
  expect_error(without(kSlurm, "SLURM_LOCALID"), {"SLURM_LOCALID"});
  expect_error(without(kSlurm, "SLURM_STEP_TASKS_PER_NODE"), {"SLURM_STEP_TASKS_PER_NODE"});
  expect_error(without(without(kSlurm, "SLURM_STEP_NUM_TASKS"), "SLURM_NTASKS"), {"SLURM_NTASKS"});
}

// A batch script has SLURM_PROCID=0 and SLURM_NTASKS of the whole job, but is one process.
TEST(Rendezvous, SlurmBatchScriptIsOneProcess) {
  const Variables batch = {{"SLURM_JOB_ID", "77"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"},
                           {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"}, {"SLURM_TASKS_PER_NODE", "4(x2)"}};
  expect_place(read(batch), "none", 0, 1, 0, 1);
  for (const char* reserved : {"4294967291", "4294967290", "4294967294"}) {  // batch, interactive, pending
    expect_place(read(joined(kSlurm, {{"SLURM_STEP_ID", reserved}})), "none", 0, 1, 0, 1);
  }
}

TEST(Rendezvous, SlurmStepOfOneTaskIsOneProcess) {
  expect_place(read(joined(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}})), "none", 0, 1, 0, 1);
}

// mpirun starts its daemons with srun, so its ranks see the daemons' Slurm variables.
TEST(Rendezvous, MpirunInsideASlurmAllocation) {
  expect_place(read(joined(kSlurm, kMpi)), "mpi", 5, 8, 1, 4);
}

TEST(Rendezvous, Torchrun) {
  const Place place = read(kTorchrun);
  expect_place(place, "torchrun", 3, 8, 3, 4);
  EXPECT_EQ(place.master_address, "node");
  EXPECT_EQ(place.master_port, 29500);
  EXPECT_FALSE(place.agent_store);
  EXPECT_TRUE(read(joined(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})).agent_store);
}

TEST(Rendezvous, TorchrunInsideASlurmBatchScript) {
  expect_place(read(joined({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}, kTorchrun)), "torchrun", 3, 8, 3, 4);
}

TEST(Rendezvous, TorchrunWithoutLocalWorldSize) {
  EXPECT_EQ(read(without(kTorchrun, "LOCAL_WORLD_SIZE")).local_size, 8);
  expect_error(joined(without(kTorchrun, "LOCAL_WORLD_SIZE"), {{"LOCAL_RANK", "1"}}), {"LOCAL_WORLD_SIZE"});
}

TEST(Rendezvous, TorchrunHalfSet) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    expect_error(without(kTorchrun, name), {name});
  }
  expect_error(joined(kTorchrun, {{"MASTER_PORT", "70000"}}), {"MASTER_PORT=70000"});
  expect_error(joined(kTorchrun, {{"MASTER_PORT", "0"}}), {"MASTER_PORT=0"});
}

TEST(Rendezvous, TorchrunWithOneRankNeedsNoMeetingPlace) {
  const Variables one = {{"RANK", "0"}, {"WORLD_SIZE", "1"}};
  expect_place(read(one), "torchrun", 0, 1, 0, 1);
  EXPECT_EQ(make_fabric(read(one), "cpu"), nullptr);
}

// Machines that set a meeting place for all programs do not make a run of several ranks.
TEST(Rendezvous, MasterAddressAloneIsOneProcess) {
  expect_place(read({{"MASTER_ADDR", "node"}, {"MASTER_PORT", "29500"}}), "none", 0, 1, 0, 1);
}

TEST(Rendezvous, MpiAndTorchrunMustAgree) {
  expect_place(read(joined(kMpi, {{"RANK", "5"}, {"WORLD_SIZE", "8"}})), "mpi", 5, 8, 1, 4);
  expect_place(read(joined(kMpi, {{"WORLD_SIZE", "64"}})), "mpi", 5, 8, 1, 4);
  expect_error(joined(kMpi, kTorchrun), {"OMPI_COMM_WORLD_RANK=5", "RANK=3"});
}

TEST(Rendezvous, UnknownDeviceNamesTheKnownOnes) {
  try {
    make_fabric({}, "gpu");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "device 'gpu' is not known; use cpu or cuda");
  }
}

}  // namespace
}  // namespace tetra

// Rank 1 fails in one of several ways while the others wait in a collective. Run by expect_failure.sh.

#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstdio>
#include <exception>
#include <string>

#include "kernels/error.h"
#include "mesh/fabric.h"
#include "mesh/rendezvous.h"

namespace {

using Group = c10::intrusive_ptr<c10d::Backend>;

/// Every rank but 1 waits for all in `group`, which is made here; rank 1 throws, or has another size.
void run(tetra::Fabric& fabric, const std::string& how, Group& group) {
  std::vector<int> ranks;
  for (int rank = 0; rank < fabric.size(); ++rank) {
    ranks.push_back(rank);
  }
  group = fabric.make_group(ranks, "world", std::chrono::seconds(100));
  if (fabric.rank() == 1 && how != "size") {
    tetra::fail("shard {} is broken", fabric.rank());
  }
  std::vector<at::Tensor> x = {at::zeros({how == "size" && fabric.rank() == 1 ? 1001 : 1000})};
  group->allreduce(x, c10d::AllreduceOptions())->wait();
}

/// A launcher that catches and tells the fabric. The group outlives the error, as in a World: the others learn of it
/// from the message, not from a connection that goes before it is said.
int catch_and_abort(const tetra::Place& place, const std::string& how) {
  const auto fabric = tetra::make_fabric(place, "cpu");
  Group group;
  try {
    run(*fabric, how, group);
  } catch (const std::exception& error) {
    fabric->abort(error.what());
  }
  return 0;
}

/// The fabric is destroyed by the exception.
int unwind(const tetra::Place& place, const std::string& how) {
  try {
    const auto fabric = tetra::make_fabric(place, "cpu");
    Group group;
    run(*fabric, how, group);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
  return 0;
}

}  // namespace

int main(int, char** arguments) {
  const std::string how = arguments[1];
  tetra::Place place = tetra::read_place();
  if (how == "place") {
    place.source = "slurm";
    place.world_size = 4;
    return unwind(place, how);
  }
  if (how == "uncaught") {
    Group group;
    run(*tetra::make_fabric(place, "cpu"), how, group);
    return 0;
  }
  return how == "unwind" ? unwind(place, how) : catch_and_abort(place, how);
}

#pragma once
// Ranks as processes that find each other by torchrun-style variables: TCP, through the Gloo in libtorch.

#include <memory>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Store;
}

namespace tetra {

class Fabric;
struct Place;

/// Collective over all ranks. Slower than MPI (TCP even inside a machine), but needs nothing installed.
std::shared_ptr<Fabric> make_gloo_fabric(const Place& place, const c10::intrusive_ptr<c10d::Store>& store);

}  // namespace tetra

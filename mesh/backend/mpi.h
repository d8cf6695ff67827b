#pragma once
// Ranks as processes that MPI has started. Where MPI was not found at build time, mpi_stub.cpp takes this file's place.

#include <memory>

namespace tetra {

class Fabric;
struct Place;

/// Initialises MPI, unless the program has done so itself, and makes the fabric. `place` is what the environment says
/// and must agree with MPI. MPI is finalised when the fabric and its groups are gone, but only after an orderly end:
/// not while an exception is under way nor with operations unfinished, since the peers would then hang in it.
std::shared_ptr<Fabric> make_mpi_fabric(const Place& place);

}  // namespace tetra

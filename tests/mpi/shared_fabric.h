#pragma once
// The fabric of this process, which all tests of the program use.

#include <memory>

namespace tetra {

class Fabric;
std::shared_ptr<Fabric>& fabric();

}  // namespace tetra
